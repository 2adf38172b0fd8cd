"""Which tokens a drafter drafts: those that targets have most of.

To score the whole vocabulary is most of what a small drafter does, and most of a vocabulary is
rare. What is left out is not lost: the verifier writes it (after FR-Spec, Zhao et al., ACL 2025,
who rank the tokens of a language model's text).
"""

from __future__ import annotations

import os

import numpy as np
import torch
from fairseq.data import data_utils
from torch import Tensor

from specdec_plugins.checkpoints.archive import CheckpointError

KEY = "decoder.draft_vocabulary"
"""Where a drafter's weights have them."""


def most_frequent_tokens(
    folder: str, languages: tuple[str | None, str | None], count: int
) -> Tensor:
    """``(count,)`` the tokens that binarised training targets have most of, the most frequent
    first; fewer where there are no more.

    Args:
        languages: source and target.

    Raises:
        CheckpointError: the folder has no training set of these languages.
    """
    source, target = languages
    path = os.path.join(folder, f"train.{source}-{target}.{target}")
    targets = data_utils.load_indexed_dataset(path, None)
    if targets is None:
        raise CheckpointError(
            f"{path}.bin: no such training set; name the data directory that the drafter was "
            "trained on, and the languages"
        )
    counts = np.zeros(0, dtype=np.int64)
    for tokens in targets:
        found = np.bincount(tokens.numpy(), minlength=len(counts))
        found[: len(counts)] += counts
        counts = found
    ranked = np.argsort(-counts, kind="stable")[:count]
    return torch.from_numpy(ranked[counts[ranked] > 0])
