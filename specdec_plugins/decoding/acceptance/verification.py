"""The verifier's scores of a draft, and the accepted path, by compiled code or by tensor code.

With relaxed acceptance there may be several paths. The path goes to the verifier's token where the
draft has it, else to the child with the longest good path, the likeliest of equals.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.decoding.acceptance.sampling import Proposal
from specdec_plugins.decoding.kernels import Bools, Ints, indices, on_host
from specdec_plugins.engines.compiling import compiled


@dataclass
class Verification:
    """The verifier's scores after each token that it read: the root, then the draft."""

    #: ``(rows, slots, vocab)`` log-probabilities before ``normalisers`` are subtracted; minus
    #: infinity where a token is forbidden.
    scores: Tensor
    eos: int
    #: ``(rows, slots)`` log of the summed exponentials of scores before any were forbidden: as in
    #: fairseq, the rest need not add up to 1.
    normalisers: Tensor
    #: True to use tensor code alone, which can be recorded, also on a CPU.
    by_tensors: bool = False

    @cached_property
    def best(self) -> Tensor:
        """``(rows, slots)`` the most probable token; of equals the first."""
        if self._on_host:
            # numpy's is ten times as fast as torch's.
            return torch.from_numpy(self.scores.numpy().argmax(-1))
        return self.scores.argmax(-1)

    @property
    def _on_host(self) -> bool:
        return self.scores.device.type == "cpu" and not self.by_tensors

    @cached_property
    def log_probabilities(self) -> Tensor:
        """``(rows, slots, vocab)``; for a few tokens :meth:`of` is faster."""
        return self.scores - self.normalisers[..., None]

    def at(self, tokens: Tensor, sources: Tensor) -> Tensor:
        """Return ``(rows, n)`` scores of ``tokens``, each after the ``sources``-th one read."""
        if self._on_host:
            rows = np.arange(len(tokens))[:, None]
            return torch.from_numpy(self.scores.numpy()[rows, sources.numpy(), tokens.numpy()])
        # Where rows are apart, to gather from all scores in a line would copy them.
        return self.scores[indices(len(tokens), tokens.device)[:, None], sources, tokens]

    def of(self, tokens: Tensor, sources: Tensor) -> Tensor:
        """Return ``(rows, n)`` log-probabilities of tokens after the ``sources``-th one read."""
        return self.at(tokens, sources) - self.normalisers.gather(1, sources)

    def among_best(self, count: int, scores: Tensor, sources: Tensor, asked: Tensor) -> Tensor:
        """Return ``(rows, n)`` True where ``asked`` and fewer than ``count`` tokens have higher
        ``scores`` after the ``sources``-th one read."""
        if not self._on_host:
            after = sources[..., None].expand(-1, -1, self.scores.size(-1))
            better = self.scores.gather(1, after) > scores[..., None]
            return asked & (better.sum(-1) < count)
        # Few are asked for, and numpy counts several times as fast as torch.
        table = self.scores.numpy()
        slots = sources.numpy()
        bounds = scores.numpy()
        among = np.zeros(asked.shape, dtype=bool)
        for i in zip(*asked.numpy().nonzero()):
            among[i] = np.count_nonzero(table[i[0], slots[i]] > bounds[i]) < count
        return torch.from_numpy(among)


@dataclass
class Accepted:
    """The tokens to commit of every row: accepted ones, then the verifier's, up to EOS."""

    #: ``(rows, n)`` these tokens, then padding.
    tokens: Tensor
    #: ``(rows, n)`` the token before each: 0 is the last one of the step before, i > 0 the i-th
    #: drafted one.
    sources: Tensor
    #: The number of tokens to commit, bonus token included.
    committed: list[int]
    #: Drafted tokens among them.
    accepted: list[int]
    #: Verify lengths.
    verified: list[int]


def walk(
    after: Ints,
    drafted: Ints,
    good: Tensor,
    verifier_tokens: Tensor,
    eos: int,
    lengths: list[int],
) -> Accepted:
    """Return the path from the root over ``good`` nodes, then the verifier's token.

    It is walked on the host, which waits for a GPU.

    Args:
        after: ``(rows, nodes)`` parents, where 0 is the root and node i > 0 holds drafted token
            i - 1; maybe ``(1, nodes)`` for all rows.
        drafted: ``(rows, nodes)`` tokens, by probability.
        good: ``(rows, nodes)`` True for nodes that may be committed after their parents.
        verifier_tokens: ``(rows, nodes + 1)`` after each node.
        lengths: the number of nodes of each row.
    """
    nodes, chosen, counts = _walk(
        after, drafted, on_host(good), on_host(verifier_tokens), eos, np.array(lengths)
    )
    committed, accepted = counts.tolist()
    width = max(accepted) + 1
    tokens = torch.from_numpy(chosen[:, :width].copy()).to(good.device)
    sources = torch.from_numpy(nodes[:, :width].copy()).to(good.device)
    return Accepted(tokens, sources, committed, accepted, lengths)


@compiled
def _walk(
    parents: Ints, tokens: Ints, good: Bools, best: Ints, eos: int, lengths: Ints
) -> tuple[Ints, Ints, Ints]:
    """Return the sources, tokens and counts (committed and accepted) of an :class:`Accepted`."""
    rows, longest = tokens.shape
    nodes = np.zeros((rows, longest + 1), np.int64)
    chosen = np.zeros((rows, longest + 1), np.int64)
    counts = np.zeros((2, rows), np.int64)
    for row in range(rows):
        above = parents[row if len(parents) > 1 else 0]
        # Each node's preferred child, and the length of the longest good path after the node.
        children = np.zeros(longest + 1, np.int64)
        beyond = np.zeros(longest + 1, np.int64)
        for node in range(lengths[row], 0, -1):
            if good[row, node - 1]:
                parent = above[node - 1]
                token = best[row, parent]
                child = children[parent]
                if (
                    child == 0
                    or tokens[row, node - 1] == token
                    or (tokens[row, child - 1] != token and beyond[node] >= beyond[child])
                ):
                    children[parent] = node
                beyond[parent] = max(beyond[parent], beyond[node] + 1)
        node = 0
        accepted = 0
        ended = False
        while children[node] > 0 and not ended:
            node = children[node]
            accepted += 1
            nodes[row, accepted] = node
            chosen[row, accepted - 1] = tokens[row, node - 1]
            ended = tokens[row, node - 1] == eos
        if not ended:
            chosen[row, accepted] = best[row, node]
        counts[0, row] = accepted + (not ended)
        counts[1, row] = accepted
    return nodes, chosen, counts


class Links(NamedTuple):
    """The structure of drafts, for every row or, ``(1, …)``, for all rows alike."""

    #: ``(rows, nodes)`` the node before each: 0 is the root, i > 0 the i-th drafted token.
    after: Tensor
    #: ``(rows, nodes + 1)`` tokens from the root to each.
    depths: Tensor
    #: ``(rows, nodes + 1, nodes + 1)`` bool: the nodes that each node comes after, and itself.
    ancestors: Tensor
    #: The largest possible depth.
    deepest: int
    #: True if every draft is a chain.
    straight: bool = False


class Drafted(Protocol):
    """A draft, as far as acceptance rules read it."""

    @property
    def tokens(self) -> Tensor:
        """``(rows, slots)`` the drafted tokens."""

    @property
    def links(self) -> Links:
        """The token that each one comes after."""

    @property
    def drafted(self) -> list[int]:
        """The number of each row's tokens, which are the first."""

    @property
    def proposal(self) -> Proposal | None:
        """The distributions that tokens were drawn from; None: they were chosen."""


class AcceptedPath(NamedTuple):
    """The tokens to commit: accepted ones, then the verifier's, up to EOS."""

    #: ``(rows, n)`` the node before each token.
    sources: Tensor
    #: ``(rows, n)`` these tokens, then padding.
    tokens: Tensor
    #: ``(rows, 1)`` the number of drafted ones among them.
    accepted: Tensor
    #: ``(rows, 1)`` the number of them all.
    committed: Tensor


@lru_cache(maxsize=512)
def chain_links(slots: int, device: torch.device) -> Links:
    """Return the links of a chain, which are not to be changed."""
    with torch.inference_mode(False):
        nodes = torch.arange(slots + 1, device=device)[None]
        ancestors = torch.ones(1, slots + 1, slots + 1, dtype=torch.bool, device=device).tril()
    return Links(nodes[:, :-1], nodes, ancestors, slots, straight=True)


def walk_by_tensors(
    links: Links, drafted: Tensor, good: Tensor, best: Tensor, eos: int, several: bool
) -> AcceptedPath:
    """Return the path by tensor code alone, which can be recorded.

    Args:
        drafted: ``(rows, nodes)``, the likeliest first; none after EOS may be good.
        good: ``(rows, nodes)`` True for nodes that may come after their parents.
        best: ``(rows, nodes + 1)`` the verifier's token after each node, or ``(rows, 1)`` the last.
        several: True if more than one child of a node may be good.
    """
    if not drafted.size(1):
        none = torch.zeros_like(best)
        return AcceptedPath(none, best, none, none + 1)
    on_path = _reached(links, good)
    if several and not links.straight:
        on_path = _reached(links, on_path & _preferred(links, drafted, on_path, best))
    accepted = on_path.sum(-1, keepdim=True)
    depths = indices(links.deepest + 1, best.device)[None]
    sources = depths.expand(len(best), -1)
    if links.straight:
        tokens = best.expand(-1, sources.size(1))
    else:
        # Every node of the path to the index of its depth; the others, as 0, to index 0.
        nodes = on_path * indices(drafted.size(1) + 1, best.device)[1:]
        sources = torch.zeros_like(sources).scatter_(1, on_path * links.depths[:, 1:], nodes)
        tokens = best.gather(1, sources)
    if several or best.size(1) == 1:
        following = drafted
        if not links.straight:
            index = (sources[:, 1:] - 1).clamp(min=0)
            following = drafted.gather(1, index)
        following = torch.cat([following, tokens[:, -1:]], dim=1)
        tokens = torch.where(depths < accepted, following, tokens)
    goes_on = ((tokens != eos) | (depths >= accepted)).all(-1, keepdim=True)
    return AcceptedPath(sources, tokens, accepted, accepted + goes_on)


def _reached(links: Links, good: Tensor) -> Tensor:
    """Return ``(rows, nodes)`` True for nodes that are good with all their ancestors."""
    return (links.ancestors[:, 1:, 1:] <= good[:, None]).all(-1)  # <= is "implies"


def _preferred(links: Links, drafted: Tensor, reached: Tensor, best: Tensor) -> Tensor:
    """Return ``(rows, nodes)`` True for the preferred one of reached siblings."""
    depths = links.depths[:, 1:]
    nodes = drafted.size(1)
    below = links.ancestors[:, 1:, 1:].transpose(1, 2) & reached[:, None]
    furthest = (below * depths[:, None]).amax(-1)
    is_best = drafted == best.gather(1, links.after)
    rank = (is_best * (nodes + 1) + furthest) * nodes - indices(nodes, drafted.device)
    siblings = (links.after[:, None] == links.after[..., None]) & reached[:, None]
    return ~(siblings & (rank[:, None] > rank[..., None])).any(-1)
