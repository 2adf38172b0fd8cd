"""The accepted path by tensor code alone, which can be recorded; see :mod:`.tree_walk`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specdec_plugins.decoding.kernels import indices


class Links(NamedTuple):
    """The structure of drafts, for every row or, ``(1, …)``, for all rows alike."""

    after: Tensor
    """``(rows, nodes)`` the node before each: 0 is the root, i > 0 the i-th drafted token."""
    depths: Tensor
    """``(rows, nodes + 1)`` tokens from the root to each."""
    ancestors: Tensor
    """``(rows, nodes + 1, nodes + 1)`` bool: the nodes that each node comes after, and itself."""
    deepest: int
    """The largest possible depth."""
    straight: bool = False
    """True if every draft is a chain."""


class AcceptedPath(NamedTuple):
    """The tokens to commit: accepted ones, then the verifier's, up to EOS."""

    sources: Tensor
    """``(rows, n)`` the node before each token."""
    tokens: Tensor
    """``(rows, n)`` these tokens, then padding."""
    accepted: Tensor
    """``(rows, 1)`` the number of drafted ones among them."""
    committed: Tensor
    """``(rows, 1)`` the number of them all."""


def chain_links(slots: int, device: torch.device) -> Links:
    """Return the links of a chain."""
    nodes = torch.arange(slots + 1, device=device)[None]
    ancestors = torch.ones(1, slots + 1, slots + 1, dtype=torch.bool, device=device).tril()
    return Links(nodes[:, :-1], nodes, ancestors, slots, straight=True)


def walk_by_tensors(
    links: Links, drafted: Tensor, judged: tuple[Tensor, Tensor], eos: int, several: bool
) -> AcceptedPath:
    """
    Args:
        drafted: ``(rows, nodes)``, the likeliest first; none after EOS may be good.
        judged: ``(rows, nodes)`` True for nodes that may come after their parents, and ``(rows,
            nodes + 1)`` the verifier's token after each node, or ``(rows, 1)`` the last one.
        several: True if more than one child of a node may be good.
    """
    good, best = judged
    if not drafted.size(1):
        none = torch.zeros_like(best)
        return AcceptedPath(none, best, none, none + 1)
    on_path = _reached(links, good)
    chain = links.straight
    if several and not chain:
        on_path = _reached(links, on_path & _preferred(links, drafted, on_path, best))
    accepted = on_path.sum(-1, keepdim=True)
    depths = indices(links.deepest + 1, best.device)[None]
    sources = depths.expand(len(best), -1)
    if not chain:
        # Every node of the path to the index of its depth; the others, as 0, to index 0.
        nodes = on_path * indices(drafted.size(1) + 1, best.device)[1:]
        sources = torch.zeros_like(sources).scatter_(1, on_path * links.depths[:, 1:], nodes)
    tokens = best.expand(-1, sources.size(1)) if chain else best.gather(1, sources)
    if several or best.size(1) == 1:
        following = drafted if chain else drafted.gather(1, (sources[:, 1:] - 1).clamp(min=0))
        following = torch.cat([following, tokens[:, -1:]], dim=1)
        tokens = torch.where(depths < accepted, following, tokens)
    ended = ((tokens == eos) & (depths < accepted)).any(-1, keepdim=True)
    return AcceptedPath(sources, tokens, accepted, accepted + 1 - ended.long())


def _reached(links: Links, good: Tensor) -> Tensor:
    """Return ``(rows, nodes)`` True for nodes that are good with all their ancestors."""
    return ~(links.ancestors[:, 1:, 1:] & ~good[:, None]).any(-1)


def _preferred(links: Links, drafted: Tensor, reached: Tensor, best: Tensor) -> Tensor:
    """Return ``(rows, nodes)`` True for the preferred one of reached siblings."""
    depths, nodes = links.depths[:, 1:], drafted.size(1)
    below = links.ancestors[:, 1:, 1:].transpose(1, 2) & reached[:, None]
    furthest = (below * depths[:, None]).amax(-1)
    is_best = drafted == best.gather(1, links.after)
    order = indices(nodes, drafted.device)
    rank = (is_best * (nodes + 1) + furthest) * nodes - order
    siblings = (links.after[:, None] == links.after[..., None]) & reached[:, None]
    return ~(siblings & (rank[:, None] > rank[..., None])).any(-1)
