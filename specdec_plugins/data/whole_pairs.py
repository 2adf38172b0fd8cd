"""Pairs of sentences of which every one is in a batch."""

from __future__ import annotations

import numpy as np
from fairseq.data import LanguagePairDataset
from numpy.typing import NDArray


class WholePairs(LanguagePairDataset):
    """fairseq's dataset, without its loss of sentences.

    Newer versions of fairseq (0.12.3) leave out a last batch whose size is no multiple of
    ``--required-batch-size-multiple``, which is 8 unless it is given. Older ones keep it.
    """

    def batch_by_size(
        self, indices: NDArray[np.int64], **kwargs: object
    ) -> list[NDArray[np.int64]]:
        """As fairseq's, and what it left out at the end as one more batch."""
        batches = super().batch_by_size(indices, **kwargs)
        kept = sum(len(batch) for batch in batches)
        return batches if kept == len(indices) else [*batches, indices[kept:]]
