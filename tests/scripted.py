"""A drafter that says what it is told to, and what to tell it."""

from __future__ import annotations

from typing import Any

import torch


class ScriptedDrafter:
    """Proposes given tokens for every position of every row, through compaction."""

    causal = False

    def __init__(self, script: torch.Tensor) -> None:
        self.script = script

    def encode(self, net_input: Any, verifier_out: Any) -> Any:
        return verifier_out

    def start(self, encoder_out: Any, capacity: int) -> None:
        self.rows = torch.arange(len(self.script))

    def draft(
        self, last: Any, tokens: Any, new: Any, lengths: Any, k: int, width: int, features: Any
    ) -> Any:
        index = (lengths[:, None] + torch.arange(k)).clamp(max=self.script.size(1) - 1)
        return self.script[self.rows].gather(1, index)

    def keep(self, rows: torch.Tensor, width: int) -> None:
        self.rows = self.rows[rows]


def corrupted(
    hypotheses: list[Any], width: int, corruption: float, vocabulary: int, seed: int
) -> torch.Tensor:
    """A script ``(rows, width)``: the hypotheses' tokens, a part of them replaced at random."""
    rows = [h["tokens"] for h in hypotheses]
    script = torch.stack(
        [torch.nn.functional.pad(row, (0, width - len(row)), value=5) for row in rows]
    )
    torch.manual_seed(seed)
    noise = torch.randint(0, vocabulary, script.shape)
    return torch.where(torch.rand(script.shape) < corruption, noise, script)
