"""A chi-square test of counts and a distribution."""

from __future__ import annotations

import torch


def p_value(counts: torch.Tensor, expected: torch.Tensor, least: float = 5.0) -> float:
    """Pearson's chi-square test of ``(cells,)`` counts; rare cells are taken together.

    Nothing may be counted where nothing is expected.
    """
    assert not counts[expected == 0].any(), "something impossible was counted"
    counts, expected = counts[expected > 0].double(), expected[expected > 0].double()
    rare = expected < least
    counts = torch.cat([counts[~rare], counts[rare].sum()[None]])
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    counts, expected = counts[expected > 0], expected[expected > 0]
    statistic = ((counts - expected).square() / expected).sum()
    freedom = torch.tensor(len(counts) - 1.0, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom / 2, statistic / 2)) if freedom else 1.0
