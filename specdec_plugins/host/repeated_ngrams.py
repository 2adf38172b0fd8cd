"""fairseq's ``--no-repeat-ngram-size``, which compares padding in place of an output's last tokens
(fairseq's issue 5206), and so bans nothing."""

from __future__ import annotations

import torch
from fairseq.ngram_repeat_block import NGramRepeatBlock
from torch import Tensor

_no_repeat_ngram = NGramRepeatBlock._no_repeat_ngram


def no_repeat_ngram(
    self: NGramRepeatBlock, tokens: Tensor, lprobs: Tensor, bsz: int, beam_size: int, step: int
) -> Tensor:
    """Ban tokens that would repeat an n-gram of ``(rows, capacity)`` tokens, in place."""
    before = lprobs.clone()
    banned: Tensor = _no_repeat_ngram(self, tokens[:, : step + 1], lprobs, bsz, beam_size, step)
    if self.no_repeat_ngram_size == 1:  # of which it bans nothing either
        banned.scatter_(1, tokens[:, 1 : step + 1], -torch.inf)
    # A prefix leaves one token; if it repeats, nothing would be left.
    dead = banned.isneginf().all(1)
    banned[dead] = before[dead]
    return banned


NGramRepeatBlock._no_repeat_ngram = no_repeat_ngram
