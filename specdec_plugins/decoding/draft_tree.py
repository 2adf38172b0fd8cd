"""Drafts that branch: a tree of likely continuations, verified in one pass. No fairseq in here."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_plugins.decoding.indices import indices
from specdec_plugins.models.lattice import Lattice

STEP = 1e-4
"""Nats that each token costs beyond its own: no node is as probable as its parent."""


@dataclass(frozen=True)
class Path:
    """The way through a tree that was accepted."""

    nodes: Tensor
    """``(rows, depth + 1)`` the root, the accepted nodes in order, then whatever."""
    accepted: Tensor
    """``(rows,)`` how many they are, the root not counted."""


@dataclass(frozen=True)
class DraftTree:
    """How drafted tokens hang together. Node 0 is the root, the last committed token; node i > 0
    holds drafted token i - 1. Every node's parent comes before it."""

    depth: int
    """The most tokens of a way from the root."""
    depths: Tensor
    """``(rows, nodes + 1)`` tokens from the root to each node, its own included; 0 of the root."""
    ancestors: Tensor
    """``(rows, nodes + 1, nodes + 1)`` bool: the nodes that each node comes after, and itself."""
    parents: Tensor
    """``(rows, nodes)`` of all but the root."""

    def follow(self, good: Tensor, limits: Tensor | None = None) -> Path:
        """The longest way from the root over nodes that are ``good``; of several, the likeliest.

        With strict acceptance there is only one. With relaxed acceptance a way may leave the
        verifier's best token, though that is in the tree, for one that goes on longer.

        Args:
            good: ``(rows, nodes)`` whether each node's token is accepted after its parent.
            limits: ``(rows,)`` how many nodes of each row there are; None for all.
        """
        rows, count = self.depths.shape
        index = indices(count, good.device)
        # By counting: a node whose parent were missing would never be reached.
        good = F.pad(good, (1, 0), value=True)
        reached = (self.ancestors & good[:, None]).sum(-1) == self.depths + 1
        if limits is not None:
            reached &= index <= limits[:, None]
        # Of equals, the first.
        accepted, last = (self.depths * reached).max(1)
        among = self.ancestors.gather(1, last[:, None, None].expand(-1, -1, count))[:, 0]
        # What is not on the way goes to a column of its own, which is dropped.
        place = torch.where(among, self.depths, self.depth + 1)
        nodes = place.new_zeros(rows, self.depth + 2).scatter_(1, place, index.expand(rows, -1))
        return Path(nodes[:, :-1], accepted)


def grow_tree(lattice: Lattice, nodes: int, eos: int, pad: int) -> tuple[Tensor, DraftTree]:
    """The most probable continuations in a lattice, ``nodes`` tokens in all, by probability.

    Considered are the greedy way through the lattice, and all that leave it once, at any slot to
    any candidate, and go on greedily from there. Each of their tokens has the probability of the
    whole way to it, to the drafter. The most probable ones make a tree, since no token is more
    probable than one before it: broad where the drafter is unsure, deep where it is sure. (After
    the dynamic trees of EAGLE-2, Li et al., EMNLP 2024, which grow level by level; a lattice's
    greedy continuations can be known all at once.)

    Nothing continues an EOS. Where there are fewer such tokens than ``nodes``, the rest is ``pad``,
    which no verifier accepts.

    Returns:
        ``(rows, nodes)`` tokens, and how they hang together.
    """
    candidates = lattice.candidates
    rows, slots, width = candidates.shape
    cells = slots * width
    steps = lattice.following.log_softmax(-1)
    steps.masked_fill_((candidates[:, :-1] == eos)[..., None], -torch.inf)
    ways, reach = _continuations(steps, slots, width)
    # How probable it is to leave the greedy way for each cell; for its own, at the beginning only.
    greedy = ways[:, :, 0]
    begin = lattice.first - lattice.first[:, :1]
    leave = torch.cat([begin[:, None], _after(steps, greedy)], dim=1)
    leave[:, 2:].add_(reach[:, :-1, 0, None])
    leave = leave.view(rows, 1, cells)
    leave.scatter_(2, greedy[:, None, 1:], -torch.inf)
    scores = torch.cat([leave, leave + reach[..., :cells]], dim=1).flatten(1)
    if scores.size(1) < nodes:
        scores = F.pad(scores, (0, nodes - scores.size(1)), value=-torch.inf)
    values, ids = scores.topk(nodes)
    # Each node is on a way that begins in a cell, and so many tokens beyond it; the root is on the
    # greedy way, one token before it begins.
    ids = F.pad(ids, (1, 0), value=-cells)
    beyond, cell = ids // cells, ids % cells
    place = (ids + beyond)[:, 1:].clamp(max=ways[0].numel() - 1)
    place = ways.flatten(1).gather(1, place).clamp(max=cells - 1)
    tokens = candidates.flatten(1).gather(1, place).masked_fill(values == -torch.inf, pad)
    return tokens, _tree(cell, beyond + 1, cell // width, slots)


def _after(steps: Tensor, main: Tensor) -> Tensor:
    """``(rows, slots - 1, width)`` what may come after each cell of a way but the last."""
    before = main[:, :-1, None].expand(-1, -1, steps.size(-1))
    return steps.flatten(1, 2).gather(1, before)


def _continuations(steps: Tensor, slots: int, width: int) -> tuple[Tensor, Tensor]:
    """Where one gets greedily from each candidate, and how probably.

    A slot's candidate is a cell, numbered slot by slot; after them comes one for all that is beyond
    the last slot. Of n tokens further on from what is known of half as many: every stage doubles
    them.

    Args:
        steps: ``(rows, slots - 1, width, width)`` log-probabilities of the next slot's candidates
            after each.

    Returns:
        ``(rows, slots, cells + 1)`` cells 0 … slots - 1 tokens further on than each, and
        ``(rows, slots - 1, cells + 1)`` log-probabilities of getting to all but the first of them.
    """
    rows, cells = len(steps), slots * width
    index = indices(cells + 1, steps.device)
    ways = index.new_full((rows, slots, cells + 1), cells)
    ways[:, 0] = index
    gains, best = steps.max(-1)
    if slots > 1:
        ways[:, 1, : cells - width] = (best + index[width:cells:width, None]).flatten(1)
    gains = F.pad(gains.flatten(1) - STEP, (0, width + 1), value=-torch.inf)
    known = 1
    while known < slots - 1:
        more = min(known, slots - 1 - known)
        there = ways[:, known, None].expand(-1, more, -1)
        ways[:, known + 1 : known + more + 1] = ways[:, 1 : more + 1].gather(2, there)
        known += more
    reach = gains.gather(1, ways[:, :-1].flatten(1)).view(rows, slots - 1, cells + 1)
    return ways, reach.cumsum(1)


def _tree(way: Tensor, length: Tensor, before: Tensor, depth: int) -> DraftTree:
    """From ``(rows, nodes + 1)``: which way each node is on (0 is the greedy one), how many tokens
    of it there are up to the node's, and how many of the greedy way come before those."""
    depths = before + length
    own, other = depths[..., None], depths[:, None]
    common = (way == 0)[:, None] & (other <= before[..., None])
    ancestors = (other <= own) & ((way[..., None] == way[:, None]) | common)
    parents = (ancestors & (other == own - 1)).byte().argmax(-1)[:, 1:]
    return DraftTree(depth, depths, ancestors, parents)
