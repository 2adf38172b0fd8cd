"""Criterions, which the package registers; fairseq does not import them by itself."""

# No postponed annotations: fairseq reads the config fields' types at run time.

from dataclasses import dataclass

from fairseq.criterions import FairseqCriterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from omegaconf import II
from torch import Tensor

from specdec_plugins.host.fairseq_types import LogOutput, Sample


@dataclass
class SlotLossConfig(FairseqDataclass):
    """Options of both criterions."""

    #: fairseq's ``--sentence-avg``.
    sentence_avg: bool = II("optimization.sentence_avg")


class SlotCriterion(FairseqCriterion):
    """The base of both, whose logs are sums over slots."""

    cfg: SlotLossConfig

    def sample_size(self, weights: Tensor, sample: Sample) -> Tensor:
        """Return what gradients are divided by: the sum of the slots' ``weights``, or with
        ``--sentence-avg`` the number of sentences, as in fairseq's own criterions."""
        if self.cfg.sentence_avg is True:  # no command has set what is still "${…}"
            return weights.new_tensor(sample["target"].size(0))
        return weights

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True

    @staticmethod
    def log_means(
        outputs: list[LogOutput], count: str, names: dict[str, str], unit: float = 1.0
    ) -> None:
        """Log the means of some sums, in a ``unit``.

        Args:
            count: the sum to divide by.
            names: each metric's sum.
        """
        size = sum(log.get(count, 0) for log in outputs)
        for name, key in names.items():
            total = sum(log.get(key, 0) for log in outputs)
            # Where nothing was scored, 0 without a weight leaves fairseq's averages alone.
            mean = total / size / unit if size > 0 else 0.0
            metrics.log_scalar(name, mean, size, round=4)
