"""Messages between device and host: one tensor in each direction at every step."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.decoding.acceptance.tensor_walk import AcceptedPath, Links
from specdec_plugins.decoding.drafts.growth import HostLattice, Trees
from specdec_plugins.decoding.kernels import Floating, Ints, wait_for
from specdec_plugins.decoding.resident.state import Kind
from specdec_plugins.models.lattice import Lattice

REAL = (0, 6, 7)
"""Indices of an outcome's parts that are not integers."""


class Committed(NamedTuple):
    """A step's committed tokens on the host, valid until the next step."""

    accepted: Ints
    """``(rows,)`` drafted tokens that were accepted."""
    counts: Ints
    """``(rows,)`` tokens that were committed."""
    tokens: Ints
    """``(rows, n)`` these, then padding."""
    scores: Floating
    """``(rows, n)`` their log-probabilities."""
    sources: Ints
    """``(rows, n)`` the node before each."""


class Outcome:
    """The message to the host: a step's committed tokens and, for trees, the next lattice."""

    def __init__(
        self, rows: int, kind: Kind, candidates: int, precision: torch.dtype, device: torch.device
    ) -> None:
        """
        Args:
            candidates: those of each slot of a lattice.
            precision: that of scores; integers are sent in the same width.
        """
        self._shapes: list[tuple[int, ...]] = [(kind.window,), (kind.window,), (1,), (1,)]
        if kind.nodes:
            self._shapes += [(kind.window,), (kind.block, candidates), (candidates,)]
            self._shapes.append((kind.block - 1, candidates, candidates))
        width = sum(map(math.prod, self._shapes))
        self._numbers = torch.zeros(rows, width, dtype=precision, device=device)
        self._parts = self._split(self._numbers)
        self.precision = precision
        pin = device.type == "cuda"
        self._host = torch.zeros(rows, width, dtype=precision, pin_memory=pin)
        self._arrays = [part.numpy() for part in self._split(self._host)]

    def _split(self, numbers: Tensor) -> list[Tensor]:
        """Scores, tokens, accepted and committed counts; of trees sources, and a lattice's
        candidates, first and following scores."""
        whole = torch.int64 if numbers.dtype == torch.float64 else torch.int32
        parts = torch.split(numbers, [math.prod(shape) for shape in self._shapes], dim=1)
        return [
            (part if index in REAL else part.view(whole)).view(-1, *shape)
            for index, (part, shape) in enumerate(zip(parts, self._shapes))
        ]

    def accept(self, path: AcceptedPath, scores: Tensor) -> None:
        """Send what is committed, with log-probabilities ``(rows, n)``."""
        parts = scores, path.tokens, path.accepted, path.committed, path.sources
        for part, tensor in zip(self._parts, parts):
            part.copy_(tensor)

    def draft(self, lattice: Lattice) -> None:
        """Send the next lattice."""
        parts = lattice.candidates, lattice.first, lattice.following
        for part, tensor in zip(self._parts[-3:], parts):
            part.copy_(tensor)

    def read(self) -> tuple[Committed, HostLattice | None]:
        """Return the message; the host waits for the device here, and nowhere else."""
        self._host.copy_(self._numbers, non_blocking=True)
        wait_for(self._numbers.device)
        scores, tokens, accepted, counts, *tree = self._arrays
        if not tree:
            straight = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
            return Committed(accepted[:, 0], counts[:, 0], tokens, scores, straight), None
        sources, candidates, first, following = tree
        lattice = candidates.astype(np.int64), first.astype("f4"), following.astype("f4")
        return Committed(accepted[:, 0], counts[:, 0], tokens, scores, sources), lattice


class TreeInput:
    """The message to the device: the trees to verify."""

    def __init__(self, rows: int, kind: Kind, pad: int, device: torch.device) -> None:
        """Begin with trees of ``pad``, which is never accepted."""
        nodes = kind.nodes
        # Whole words, so that their places are.
        width = 8 * (3 * nodes + 1) + -(-((nodes + 1) ** 2) // 8) * 8
        pin = device.type == "cuda"
        self._host = torch.zeros(rows, width, dtype=torch.uint8, pin_memory=pin)
        parts = _tree_parts(self._host, nodes)
        parts[0].fill_(pad)
        parts[3].copy_(torch.eye(nodes + 1))
        self._arrays = [part.numpy() for part in parts]
        self._bytes = self._host.to(device, copy=True)
        self.tokens, after, depths, ancestors = _tree_parts(self._bytes, nodes)
        """``(rows, nodes)`` drafted tokens."""
        self.links = Links(after, depths, ancestors, kind.block)

    def write(self, trees: Trees, rows: list[int]) -> None:
        """Send the trees of some rows; the host does not wait."""
        for array, tree in zip(self._arrays, trees):
            array[rows] = tree
        self._bytes.copy_(self._host, non_blocking=True)


def _tree_parts(packed: Tensor, nodes: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tokens, parents, depths and ancestors, in the order of :data:`Trees`."""
    ends = [8 * nodes, 16 * nodes, 8 * (3 * nodes + 1)]
    tokens, parents, depths = (
        part.view(torch.long) for part in packed[:, : ends[-1]].tensor_split(ends[:-1], dim=1)
    )
    pairs = packed[:, ends[-1] : ends[-1] + (nodes + 1) ** 2].view(torch.bool)
    return tokens, parents, depths, pairs.view(-1, nodes + 1, nodes + 1)
