"""``acceptance_loss``: weighted cross entropy of an acceptance head's predictions."""

# No postponed annotations: fairseq reads the config fields' types at run time.

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.nn.functional as F
from fairseq.criterions import register_criterion
from fairseq.models import BaseFairseqModel
from torch import Tensor

from specdec_plugins.checkpoints.pair import unwrapped
from specdec_plugins.criterions import SlotCriterion, SlotLossConfig
from specdec_plugins.criterions.acceptance_labels import AcceptanceLabeller
from specdec_plugins.decoding.acceptance import Scoring
from specdec_plugins.decoding.options import check_options, option
from specdec_plugins.host.fairseq_types import LogOutput, Sample

if TYPE_CHECKING:
    from specdec_plugins.tasks.translation_specdec import TranslationSpecdecTask


@dataclass
class AcceptanceLossConfig(SlotLossConfig):
    """Options of ``--criterion acceptance_loss``."""

    mismatch_weight: float = option(6.0, "weight of a rejected token; an accepted one's is 1", 1e-6)


@register_criterion("acceptance_loss", dataclass=AcceptanceLossConfig)
class AcceptanceLoss(SlotCriterion):
    """Loss summed over decided slots; by default ``sample_size`` is the sum of their weights.

    Labels are made while training: the frozen pair drafts and verifies a block after each cut of
    the target. Slots after the first rejection, or after the end of the sentence, carry no loss.
    With sampling a label is the probability of acceptance, min(1, p / q) as in SpecDec++, and a
    slot's weight the probability that it is reached: the mean over all draws, without variance.

    SpecDec++ (Huang et al., COLM 2025, §3.2) mixes drafted tokens into the head's input, because
    there a token's state depends on the drafted ones before it. A block drafter's states depend on
    the committed prefix alone: there is nothing to mix.
    """

    def __init__(self, task: "TranslationSpecdecTask", cfg: AcceptanceLossConfig) -> None:
        super().__init__(task)
        check_options(cfg, AcceptanceLossConfig)
        self.task = task
        self.cfg = cfg
        self._labeller: AcceptanceLabeller | None = None

    def forward(self, model: BaseFairseqModel, sample: Sample) -> tuple[Tensor, Tensor, LogOutput]:
        """Return the loss (nats, summed), the sample size and summable logs on the device."""
        labelled = self.labeller(model)(
            sample["net_input"], sample["target"], sample["cuts"], sample["seeds"]
        )
        logits = model(labelled.states, labelled.confidences).float()
        reached = labelled.reached > 0
        logits = logits[reached]
        chances = labelled.chances[reached].float()
        share = labelled.reached[reached].float()
        loss, weights = weighted_loss(logits, chances, share, self.cfg.mismatch_weight)
        sample_size = self.sample_size(weights, sample)
        predicted = logits.detach().sigmoid()
        # The mean square of the difference from 1 with that chance, else from 0.
        squares = predicted.square() - 2 * predicted * chances + chances
        log: LogOutput = {
            "loss": loss.detach(),
            "sample_size": sample_size.detach(),
            "weights": weights.detach(),
            "ntokens": sample["ntokens"],
            "nsentences": sample["target"].size(0),
            "decided": share.sum(),
            "accepted": (share * chances).sum(),
            "predicted": (share * predicted).sum(),
            "squares": (share * squares).sum(),
        }
        return loss, sample_size, log

    def labeller(self, model: BaseFairseqModel) -> AcceptanceLabeller:
        """Return the labeller; the pair does not change while its head is trained."""
        if self._labeller is None:
            head = unwrapped(model)
            self._labeller = AcceptanceLabeller(
                head.drafter,
                Scoring.of(self.task.rule, self.task.limits),
                head.head.settings.block_size,
            )
        return self._labeller

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[LogOutput]) -> None:
        """Log means over decided slots; the loss in bits, as fairseq does."""
        cls.log_means(logging_outputs, "weights", {"loss": "loss"}, math.log(2))
        names = {"acceptance_rate": "accepted", "predicted_rate": "predicted", "brier": "squares"}
        cls.log_means(logging_outputs, "decided", names)


def weighted_loss(
    logits: Tensor, chances: Tensor, shares: Tensor, mismatch_weight: float
) -> tuple[Tensor, Tensor]:
    """Return a binary cross entropy in which a rejection weighs ``mismatch_weight``.

    A loss weighted in this way is lowest where the predicted odds are the true ones divided by the
    weight. It is therefore taken at logits minus the weight's logarithm: then the logits themselves
    are those of the true probability.

    Args:
        logits: log-odds of acceptance.
        chances: the probability of each acceptance, 1 or 0 where it is known.
        shares: the weight of each slot.

    Returns:
        The loss in nats, and the sum of the weights.
    """
    shifted = logits - math.log(mismatch_weight)
    accepted = F.softplus(-shifted) * chances
    rejected = F.softplus(shifted) * (1 - chances)
    loss = (shares * (accepted + mismatch_weight * rejected)).sum()
    weights = shares * (chances + mismatch_weight * (1 - chances))
    return loss, weights.sum()
