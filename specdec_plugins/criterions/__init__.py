"""Criterions, which the package registers; fairseq does not import them by itself."""

from __future__ import annotations

from fairseq.criterions import FairseqCriterion
from fairseq.logging import metrics

from specdec_plugins.host.fairseq_types import LogOutput


class SlotCriterion(FairseqCriterion):
    """The base of both, whose logs are sums over slots."""

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
            # Where nothing was scored, 0 without a weight leaves fairseq's averages alone.
            mean = sum(log.get(key, 0) for log in outputs) / size / unit if size > 0 else 0.0
            metrics.log_scalar(name, mean, size, round=4)
