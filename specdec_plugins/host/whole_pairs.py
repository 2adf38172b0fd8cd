"""Pairs of sentences of which every one is in a batch, and batches as large as what they cost."""

from __future__ import annotations

import numpy as np
from fairseq.data import LanguagePairDataset
from numpy.typing import NDArray


class WholePairs(LanguagePairDataset):
    """fairseq's dataset, without its loss of sentences.

    Newer versions of fairseq (0.12.3) leave out a last batch whose size is no multiple of
    ``--required-batch-size-multiple``, which is 8 unless it is given. Older ones keep it.
    """

    slots = 0
    """Masked slots that are computed with each sentence, beside its target: ``--max-tokens`` counts
    them too."""

    def num_tokens(self, index: int) -> int:
        """Return what ``--max-tokens`` counts of a sentence: of both sides the longer one."""
        return int(self.num_tokens_vec(np.array([index]))[0])

    def num_tokens_vec(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the same of n sentences, ``(n,)``."""
        sources, targets = self.src_sizes[indices], self.tgt_sizes
        if targets is None:
            return sources
        return np.maximum(sources, targets[indices] + self.slots)

    def get_batch_shapes(self) -> list[tuple[int | None, int]] | None:
        """Return the shapes of ``--num-batch-buckets``, as fairseq makes them, by what is counted
        of a sentence."""
        shapes = super().get_batch_shapes()
        return shapes and [(rows, tokens + self.slots) for rows, tokens in shapes]

    def batch_by_size(
        self, indices: NDArray[np.int64], **kwargs: object
    ) -> list[NDArray[np.int64]]:
        """Batches as fairseq makes them, and what it left out at the end as one more."""
        batches = super().batch_by_size(indices, **kwargs)
        kept = sum(len(batch) for batch in batches)
        return batches if kept == len(indices) else [*batches, indices[kept:]]
