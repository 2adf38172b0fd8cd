"""Chi-square tests: counts and a distribution, or two counts."""

from __future__ import annotations

from collections import Counter

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


def same_p_value(one: Counter[str], other: Counter[str], least: float = 5.0) -> float:
    """Pearson's chi-square test of homogeneity; what is rare in both together is one kind."""
    kinds = sorted({*one, *other})
    table = torch.tensor([[counts[kind] for kind in kinds] for counts in (one, other)]).double()
    shares = table.sum(0) / table.sum()
    rare = shares * table.sum(1).min() < least
    table = torch.cat([table[:, ~rare], table[:, rare].sum(1, keepdim=True)], dim=1)
    table = table[:, table.sum(0) > 0]
    expected = table.sum(1, keepdim=True) * table.sum(0) / table.sum()
    statistic = ((table - expected).square() / expected).sum()
    freedom = torch.tensor(table.size(1) - 1.0, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom / 2, statistic / 2))
