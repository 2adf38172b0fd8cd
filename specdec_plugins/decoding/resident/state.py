"""The buffers of a resident step, at fixed addresses, and its messages to and from the host."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec_plugins.decoding.acceptance.verification import AcceptedPath, Links
from specdec_plugins.decoding.drafts.growth import Trees
from specdec_plugins.decoding.kernels import to_device, wait_for
from specdec_plugins.decoding.steps.cache import empty_cache
from specdec_plugins.decoding.steps.drafter import DrafterStep
from specdec_plugins.decoding.steps.verifier import VerifierStep
from specdec_plugins.models.lattice import Lattice


@dataclass(frozen=True)
class Kind:
    """The draft of every step."""

    #: Slots of a pass of the drafter, for trees the largest depth; 0: nothing is drafted.
    block: int = 0
    #: Drafted tokens of a tree; 0: drafts are chains.
    nodes: int = 0

    @property
    def slots(self) -> int:
        """Tokens that the verifier reads: the last committed one, and the draft."""
        return 1 + (self.nodes or self.block)

    @property
    def window(self) -> int:
        """The largest number of tokens that a step commits."""
        return 1 + self.block


@dataclass(frozen=True)
class Shape:
    """The sizes of a step's buffers."""

    rows: int
    #: Positions of the verifier's cache; the last ones are for the tokens that are read. 0: the
    #: step reads sources, and decodes nothing.
    width: int
    #: Source tokens.
    source: int


#: The source, EOS included, and the largest number of output tokens before EOS.
Sentence = tuple[list[int], int]


class State:
    """The rows of a step; nobody reads those without a sentence."""

    #: The dimension of rows, and the one whose size differs from shape to shape.
    BUFFERS: ClassVar = {
        **dict.fromkeys(("counts", "tokens", "features", "history"), (0, 1)),
        **dict.fromkeys(("cache", "draft_cache", "memory", "draft_memory"), (2, 4)),
        "memory_mask": (0, 3),
    }
    #: The buffers of a sentence that begins. Sources end at the last index.
    SOURCES = ("counts", "memory", "draft_memory", "memory_mask")

    def __init__(
        self,
        verifier: VerifierStep,
        drafter: DrafterStep | None,
        kind: Kind,
        shape: Shape,
        weight: Tensor,
    ) -> None:
        """``weight``: the verifier's, for precision and device."""
        rows = shape.rows
        width = shape.width or kind.slots
        self.device = weight.device
        self._reads = not shape.width
        dtype = weight.dtype
        self.source = self._zeros(rows, shape.source)
        self.counts = self._zeros(rows, 4)
        #: ``(rows,)``: committed tokens; those of the last step, which the drafter has not cached;
        #: their limit before EOS; the last one, EOS at first.
        self.lengths, self.new, self.limits, self.last = self.counts.unbind(1)
        self.going = self._zeros(rows).bool()
        #: ``(rows, window + block)`` the tokens that the last step committed, then padding.
        self.tokens = self._zeros(rows, kind.window + kind.block)
        #: ``(rows, width)`` all committed tokens, only for a repetition penalty.
        self.history = self._zeros(rows, width)
        self.cache = empty_cache(verifier.layers, rows, width, dtype, self.device)
        self.memory = empty_cache(verifier.layers, rows, shape.source, dtype, self.device)
        self.memory_mask = weight.new_zeros(rows, 1, 1, shape.source)
        self.features = self.draft_cache = self.draft_memory = None
        if drafter is not None and kind.block:
            behind = width - kind.slots + kind.window + kind.block
            layers = drafter.layers
            self.draft_cache = empty_cache(layers, rows, behind, dtype, self.device)
            self.draft_memory = empty_cache(layers, rows, shape.source, dtype, self.device)
            if drafter.channels:
                self.features = weight.new_zeros(rows, kind.window, drafter.channels)

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.long, device=self.device)

    def begin(self, sentences: list[Sentence], pad: int, eos: int) -> None:
        """Begin with some sentences; other rows are padding."""
        rows, width = self.source.shape
        sentences = sentences + [([], 0)] * (rows - len(sentences))
        sources = [[pad] * (width - len(source)) + source for source, _ in sentences]
        self.source.copy_(to_device(sources, self.device))
        self.counts.copy_(to_device([[0, 0, limit, eos] for _, limit in sentences], self.device))

    def take(self, other: State, rows: list[int], into: list[int]) -> None:
        """Go on with ``rows`` of another state as the rows ``into``."""
        chosen, index = to_device([rows, into], self.device).unbind()
        for name in self.SOURCES if other._reads else self.BUFFERS:
            target = getattr(self, name)
            source = getattr(other, name)
            if target is not None:
                by_row, dim = self.BUFFERS[name]
                size = min(target.size(dim), source.size(dim))
                begin = -size if "memory" in name else 0
                target = target.narrow(dim, begin, size)
                source = source.narrow(dim, begin, size)
                target.index_copy_(by_row, index, source.index_select(by_row, chosen))
        self.going.index_fill_(0, index, True)


Arrays = dict[str, NDArray[Any]]
#: Types and shapes of a row's numbers, by name.
Parts = dict[str, tuple[torch.dtype, tuple[int, ...]]]


class Message:
    """Numbers of every row, which go between host and device in a single copy."""

    def __init__(self, rows: int, parts: Parts, device: torch.device) -> None:
        # Whole words, so that their addresses are.
        words = [-(-math.prod(shape) * kind.itemsize // 8) for kind, shape in parts.values()]
        self._host = torch.zeros(
            rows, 8 * sum(words), dtype=torch.uint8, pin_memory=device.type == "cuda"
        )
        self._bytes = self._host.to(device, copy=True)
        #: Views of the numbers on the device, and on the host.
        self.parts = dict[str, Tensor]()
        self.arrays = Arrays()
        for (name, (kind, shape)), end, count in zip(parts.items(), accumulate(words), words):
            begin = 8 * (end - count)
            size = math.prod(shape) * kind.itemsize
            within = slice(begin, begin + size)
            part = self._bytes[:, within].view(kind)
            array = self._host[:, within].view(kind)
            self.parts[name] = part.view(rows, *shape)
            self.arrays[name] = array.view(rows, *shape).numpy()


class Outcome(Message):
    """The message to the host: a step's committed tokens and, for trees, the next lattice."""

    LATTICE = ("candidates", "first", "following")

    def __init__(
        self, rows: int, kind: Kind, candidates: int, precision: torch.dtype, device: torch.device
    ) -> None:
        """``candidates``: those of each slot of a lattice; ``precision``: that of scores."""
        window = (kind.window,)
        parts: Parts = dict.fromkeys(("accepted", "committed"), (torch.long, (1,)))
        parts |= dict.fromkeys(("tokens", "sources"), (torch.long, window))
        parts["scores"] = precision, window
        if kind.nodes:
            parts["candidates"] = torch.long, (kind.block, candidates)
            parts["first"] = torch.float, (candidates,)
            parts["following"] = torch.float, (kind.block - 1, candidates, candidates)
        super().__init__(rows, parts, device)
        if kind.nodes:
            # Those of a slot differ, also in rows without a sentence.
            self.arrays["candidates"][:] = np.arange(candidates)

    def accept(self, path: AcceptedPath, scores: Tensor) -> None:
        """Send what is committed, with log-probabilities ``(rows, n)``."""
        for name, tensor in {"scores": scores, **path._asdict()}.items():
            self.parts[name].copy_(tensor)

    def draft(self, lattice: Lattice) -> None:
        """Send the next lattice."""
        for name in self.LATTICE:
            self.parts[name].copy_(getattr(lattice, name))

    def read(self) -> Arrays:
        """Return the parts, valid until the next step; only here the host waits for a device."""
        self._host.copy_(self._bytes, non_blocking=True)
        wait_for(self._bytes.device)
        return self.arrays


class TreeInput(Message):
    """The message to the device: the trees to verify."""

    def __init__(self, rows: int, kind: Kind, pad: int, device: torch.device) -> None:
        """Begin with trees of ``pad``, which is never accepted."""
        size = kind.nodes + 1
        parts: Parts = dict.fromkeys(("tokens", "after"), (torch.long, (kind.nodes,)))
        parts |= {"depths": (torch.long, (size,)), "ancestors": (torch.bool, (size, size))}
        super().__init__(rows, parts, device)
        #: ``(rows, nodes)`` drafted tokens.
        self.tokens, after, depths, ancestors = self.parts.values()
        self.links = Links(after, depths, ancestors, kind.block)
        self.arrays["tokens"][:] = pad
        self.arrays["ancestors"][:] = np.eye(size)
        self._bytes.copy_(self._host)

    def write(self, trees: Trees) -> None:
        """Send the trees of all rows; the host does not wait."""
        for array, tree in zip(self.arrays.values(), trees):
            array[:] = tree
        self._bytes.copy_(self._host, non_blocking=True)
