"""What a generator hands out for a sentence: fairseq's contract, and what its steps committed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specdec_plugins.decoding.limits import GenerationLimits


def make_hypothesis(
    tokens: Tensor, scores: Tensor, accepted: list[int], limits: GenerationLimits, bonus: int = 1
) -> dict[str, Any]:
    """The hypothesis of ``tokens`` ``(length,)``, EOS included, with log-probabilities ``scores``.

    The tensors are copied. ``accepted`` is the number of drafted tokens that each step committed,
    and ``bonus`` how many the verifier added, but at the end of the sentence. ``history`` is what
    fairseq's ``--retain-iter-history`` prints: the tokens that each step committed.
    """
    score = scores.sum()
    if limits.normalize_scores:
        score = score / len(tokens) ** limits.lenpen
    tokens = tokens.clone()
    committed = [count + bonus for count in accepted]
    committed[-1] = len(tokens) - sum(committed[:-1])
    return {
        "tokens": tokens,
        "score": score,
        "positional_scores": scores.clone(),
        "attention": torch.empty(0),
        "alignment": torch.empty(0),
        "steps": len(accepted),
        "accepted": accepted,
        "history": [{"tokens": part} for part in torch.split(tokens, committed)],
    }
