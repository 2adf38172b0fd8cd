"""fairseq's ``--no-repeat-ngram-size`` bans what would repeat, and never all."""

from __future__ import annotations

import pytest
import torch
from fairseq.ngram_repeat_block import NGramRepeatBlock

from specdec_plugins.tasks import translation_specdec  # noqa: F401  which mends fairseq

PAD, EOS = 1, 2


@pytest.mark.parametrize(("size", "banned"), [(1, {5, 6}), (2, {6}), (3, set[int]())])
def test_what_would_repeat_is_banned(size: int, banned: set[int]) -> None:
    """After ``5 6 5``; the buffer has room for more tokens."""
    tokens = torch.tensor([[EOS, 5, 6, 5, PAD, PAD, PAD]])
    scores = NGramRepeatBlock(size)(tokens, torch.zeros(1, 9), 1, 1, 3)
    assert set(scores[0].isneginf().nonzero()[:, 0].tolist()) == banned


def test_a_prefix_that_repeats_stays() -> None:
    """It leaves one token, 6, which alone may follow."""
    tokens = torch.tensor([[EOS, 5, 6, 5, PAD, PAD, PAD]])
    forced = torch.full((1, 9), -torch.inf)
    forced[0, 6] = 0.0
    scores = NGramRepeatBlock(2)(tokens, forced.clone(), 1, 1, 3)
    assert torch.equal(scores, forced)
