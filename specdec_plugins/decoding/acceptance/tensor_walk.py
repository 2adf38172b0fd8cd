"""The way through drafted tokens that is accepted, by tensor code alone: as
:func:`~specdec_plugins.decoding.acceptance.tree_walk.walk` finds it, for what asks the host
nothing."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specdec_plugins.decoding.kernels import indices


class Links(NamedTuple):
    """How drafted tokens hang together, of every row or, ``(1, …)``, of all rows alike."""

    after: Tensor
    """``(rows, nodes)`` the node before each: 0 is the last committed token, i > 0 the i-th drafted
    one."""
    depths: Tensor
    """``(rows, nodes + 1)`` tokens from the last committed one to each."""
    ancestors: Tensor
    """``(rows, nodes + 1, nodes + 1)`` bool: the nodes that each node comes after, and itself."""
    deepest: int
    """The largest depth that there may be."""
    straight: bool = False
    """Whether every draft is a chain."""


class Way(NamedTuple):
    """What is committed: accepted tokens, then the verifier's own, up to EOS."""

    sources: Tensor
    """``(rows, n)`` the node after which each token comes."""
    tokens: Tensor
    """``(rows, n)`` these, then whatever."""
    accepted: Tensor
    """``(rows, 1)`` how many of them were drafted."""
    committed: Tensor
    """``(rows, 1)`` how many there are."""


def chain_links(slots: int, device: torch.device) -> Links:
    """Of a chain of so many slots."""
    nodes = torch.arange(slots + 1, device=device)[None]
    ancestors = torch.ones(1, slots + 1, slots + 1, dtype=torch.bool, device=device).tril()
    return Links(nodes[:, :-1], nodes, ancestors, slots, straight=True)


def walk_by_tensors(
    links: Links, drafted: Tensor, judged: tuple[Tensor, Tensor], eos: int, several: bool
) -> Way:
    """
    Args:
        drafted: ``(rows, nodes)``, the likeliest first; none that comes after EOS is good.
        judged: ``(rows, nodes)`` whether each may come after the one before it, and ``(rows,
            nodes + 1)`` the verifier's own token after each node, or ``(rows, 1)`` the only one
            that counts.
        several: whether more than one of the tokens after the same one may be good.
    """
    good, own = judged
    if not drafted.size(1):
        none = torch.zeros_like(own)
        return Way(none, own, none, none + 1)
    on_way = _reached(links, good)
    chain = links.straight
    if several and not chain:
        on_way = _reached(links, on_way & _preferred(links, drafted, on_way, own))
    accepted = on_way.sum(-1, keepdim=True)
    places = indices(links.deepest + 1, own.device)[None]
    sources = places.expand(len(own), -1)
    if not chain:
        # Every node of the way to where its depth says; the others, as 0, to place 0.
        nodes = on_way * indices(drafted.size(1) + 1, own.device)[1:]
        sources = torch.zeros_like(sources).scatter_(1, on_way * links.depths[:, 1:], nodes)
    tokens = own.expand(-1, sources.size(1)) if chain else own.gather(1, sources)
    if several or own.size(1) == 1:
        following = drafted if chain else drafted.gather(1, (sources[:, 1:] - 1).clamp(min=0))
        following = torch.cat([following, tokens[:, -1:]], dim=1)
        tokens = torch.where(places < accepted, following, tokens)
    ended = ((tokens == eos) & (places < accepted)).any(-1, keepdim=True)
    return Way(sources, tokens, accepted, accepted + 1 - ended.long())


def _reached(links: Links, good: Tensor) -> Tensor:
    """``(rows, nodes)`` bool: nodes that are ``good``, with all that they come after."""
    return ~(links.ancestors[:, 1:, 1:] & ~good[:, None]).any(-1)


def _preferred(links: Links, drafted: Tensor, reached: Tensor, own: Tensor) -> Tensor:
    """``(rows, nodes)`` bool: of nodes that are reached and come after the same one, the verifier's
    own token; if that is not there, the one from which the way goes on longest, of equals the
    likeliest."""
    depths, nodes = links.depths[:, 1:], drafted.size(1)
    below = links.ancestors[:, 1:, 1:].transpose(1, 2) & reached[:, None]
    furthest = (below * depths[:, None]).amax(-1)
    is_own = drafted == own.gather(1, links.after)
    order = indices(nodes, drafted.device)
    rank = (is_own * (nodes + 1) + furthest) * nodes - order
    siblings = (links.after[:, None] == links.after[..., None]) & reached[:, None]
    return ~(siblings & (rank[:, None] > rank[..., None])).any(-1)
