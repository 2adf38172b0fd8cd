"""A drafter that says what it is told to, and what to tell it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from conftest import make_dictionary

from specdec_plugins.decoding.batch import Prefixes
from specdec_plugins.decoding.controllers import Bounds, Constant, Draft
from specdec_plugins.decoding.draft_tree import Path
from specdec_plugins.decoding.tree_source import TreeSource
from specdec_plugins.models.lattice import Lattice

DICTIONARY = make_dictionary()


class ScriptedHead:
    """An acceptance head that says what it is told to, of states and probabilities."""

    def __init__(self, says: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        self.says = says

    def __call__(self, states: torch.Tensor, probabilities: torch.Tensor) -> torch.Tensor:
        assert states.shape[:-1] == probabilities.shape
        return self.says(states, probabilities)

    def survivors(
        self, states: torch.Tensor, probabilities: torch.Tensor, least: float
    ) -> torch.Tensor:
        return (self(states, probabilities).cumprod(-1) >= least).sum(-1)


class ScriptedDrafter:
    """Proposes given tokens for every position of every row, through compaction."""

    causal = False
    reads_features = False

    def __init__(self, script: torch.Tensor) -> None:
        self.script = script

    def encode(self, net_input: Any, verifier_out: Any) -> Any:
        return verifier_out

    def start(self, encoder_out: Any, capacity: int) -> None:
        self.rows = torch.arange(len(self.script))

    def draft(
        self,
        prefixes: Prefixes,
        last: Any,
        k: int,
        with_probabilities: bool,
        propose: Any,
    ) -> Draft:
        drafted = self._scripted(prefixes, k)
        return Draft(drafted, torch.zeros(*drafted.shape, 1), torch.rand(drafted.shape))

    def trees(self, prefixes: Prefixes, last: Any, k: int) -> TreeSource:
        lattice = make_lattice(self._scripted(prefixes, k))
        return TreeSource(lattice, DICTIONARY.eos(), DICTIONARY.pad(), prefixes.slots)

    def _scripted(self, prefixes: Prefixes, k: int) -> torch.Tensor:
        rows = self.rows if prefixes.rows is None else self.rows[prefixes.rows]
        index = (prefixes.lengths[:, None] + torch.arange(k)).clamp(max=self.script.size(1) - 1)
        return self.script[rows].gather(1, index)

    def keep(self, rows: torch.Tensor, width: int) -> None:
        self.rows = self.rows[rows]


def make_lattice(tokens: torch.Tensor, others: tuple[int, ...] = (1, 2)) -> Lattice:
    """Candidates ``(rows, slots, 1 + others)``: the given tokens and some beside them, anyhow."""
    rows, slots = tokens.shape
    candidates = torch.stack([tokens, *((tokens + 4 + by) % len(DICTIONARY) for by in others)], -1)
    width = candidates.size(-1)
    order = torch.rand(rows, slots, width).argsort(-1)
    first = torch.randn(rows, width).sort(descending=True).values
    following = torch.randn(rows, slots - 1, width, width)
    return Lattice(candidates.gather(-1, order), first, following)


def make_path(nodes: torch.Tensor, accepted: torch.Tensor) -> Path:
    """A way over ``nodes`` ``(rows, slots)``, as far as a controller looks at it."""
    counts = torch.stack([accepted + 1, accepted, torch.zeros_like(accepted)])
    return Path(nodes, nodes, counts, counts.tolist(), [0] * len(nodes), False)


def attach(generator: Any, script: torch.Tensor, k: int, controller: Any = None) -> None:
    """Let a generator draft k slots by a script, or as many as a controller says."""
    generator.drafter = ScriptedDrafter(script)
    generator.block_size = k
    generator.controller = controller or Constant(Bounds(0, k))


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
