"""``glat_loss``: cross entropy of the scored slots of masked blocks."""

# No postponed annotations: fairseq reads the config fields' types at run time.

import logging
import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Optional

import torch
import torch.nn.functional as F
from fairseq.criterions import register_criterion
from torch import Tensor

from specdec_plugins.criterions import SlotCriterion, SlotLossConfig
from specdec_plugins.decoding.options import check_options, option
from specdec_plugins.host.fairseq_types import LogOutput, Sample
from specdec_plugins.models.drafter import Drafter, DrafterOutput
from specdec_plugins.models.training_pass import SlotTargets

if TYPE_CHECKING:
    from specdec_plugins.tasks.translation_specdec import TranslationSpecdecTask

logger = logging.getLogger(__name__)


@dataclass
class GlatLossConfig(SlotLossConfig):
    """Options of ``--criterion glat_loss``."""

    label_smoothing: float = option(0.0, "uniform label smoothing over the vocabulary", 0, 1)
    verifier_labels: bool = option(
        False,
        "label each slot with the verifier's distribution on the true prefix instead of the target "
        "token (needs --AR-path)",
    )
    slot_decay: float = option(
        0.0,
        "weight slot j by exp(-j / SLOT_DECAY), since it is of use only where all earlier ones are "
        "accepted; 0 weighs all alike",
        0,
    )
    mse_lambda: Optional[float] = option(
        None, "of published command lines; does nothing, as it did there"
    )


@register_criterion("glat_loss", dataclass=GlatLossConfig)
class GlatLoss(SlotCriterion):
    """Loss summed over scored slots; by default ``sample_size`` is their (weighted) number."""

    def __init__(self, task: "TranslationSpecdecTask", cfg: GlatLossConfig) -> None:
        super().__init__(task)
        if cfg.mse_lambda is not None:
            logger.warning("--mse-lambda does nothing, as in the published code")
        check_options(cfg, GlatLossConfig)
        self.cfg = cfg

    def forward(self, model: Drafter, sample: Sample) -> tuple[Tensor, Tensor, LogOutput]:
        """Return the loss (nats, summed), the sample size and summable logs on the device."""
        output: DrafterOutput = model(
            sample, partial(self._losses, model), self.cfg.verifier_labels
        )
        weights = output.scored.float()
        if self.cfg.slot_decay > 0:
            slots = torch.arange(weights.size(-1), device=weights.device)
            weights = weights * torch.exp(-slots / self.cfg.slot_decay)
        correct = output.glanced_correct
        scored = output.blocks.scored
        losses, nll = output.values
        total = weights.sum()
        weights = weights[scored]
        loss = (losses * weights).sum()
        sample_size = self.sample_size(total, sample)
        log: LogOutput = {
            "loss": loss.detach(),
            "nll_loss": (nll * weights).sum(),
            "sample_size": sample_size.detach(),
            "weights": total.detach(),
            "ntokens": sample["ntokens"],
            "nsentences": sample["target"].size(0),
            "glat_correct": correct.sum(),
            "glat_total": scored.sum(),
            "glat_context_p": sample["glancing_ratio"] * scored.sum(),
        }
        for slot in range(scored.size(-1)):
            log[f"correct_{slot}"] = correct[..., slot].sum()
            log[f"total_{slot}"] = scored[..., slot].sum()
        return loss, sample_size, log

    def _losses(
        self, model: Drafter, logits: Tensor, targets: SlotTargets
    ) -> tuple[Tensor, Tensor]:
        """Return loss and negative log-likelihood of slots, ``(n,)`` in nats."""
        lprobs = logits.log_softmax(-1, dtype=torch.float32)
        main = nll = F.nll_loss(lprobs, targets.gold, reduction="none")
        if self.cfg.verifier_labels:
            assert targets.verifier_states is not None
            assert targets.state is not None
            with torch.no_grad():
                scores = model.verifier.decoder.output_layer(targets.verifier_states)
                labels = scores.softmax(-1, dtype=torch.float32)[targets.state]
            main = -(labels * lprobs).sum(-1)
        if smoothing := self.cfg.label_smoothing:
            main = (1 - smoothing) * main - smoothing * lprobs.mean(-1)
        return main, nll.detach()

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[LogOutput]) -> None:
        """Log means over slots; losses in bits, as fairseq does."""
        cls.log_means(
            logging_outputs, "weights", {"loss": "loss", "nll_loss": "nll_loss"}, math.log(2)
        )
        glancing = {"glat_accu": "glat_correct", "glat_context_p": "glat_context_p"}
        cls.log_means(logging_outputs, "glat_total", glancing)
        slot = 0
        while any(f"total_{slot}" in log for log in logging_outputs):
            cls.log_means(logging_outputs, f"total_{slot}", {f"acc_{slot}": f"correct_{slot}"})
            slot += 1
