"""A drafter that follows a script, and such scripts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from conftest import make_dictionary
from fairseq.models.transformer import TransformerModelBase
from torch import Tensor

from specdec_plugins.decoding.batch import Prefixes
from specdec_plugins.decoding.controllers.base import Controller
from specdec_plugins.decoding.controllers.simple import Constant
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.step_result import StepResult, TraceRecorder
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.host.fairseq_types import EncoderOut, NetInput
from specdec_plugins.models.lattice import Lattice

DICTIONARY = make_dictionary()


class ScriptedHead:
    """An acceptance head by a function of states and confidences."""

    def __init__(self, says: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.says = says

    def __call__(self, states: Tensor, confidences: Tensor) -> Tensor:
        assert states.shape[:-1] == confidences.shape
        return self.says(states, confidences)


class ScriptedScores:
    """Slots that hold given tokens."""

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens

    def choose(self) -> Tensor:
        return self.tokens

    def choose_with_confidence(self) -> tuple[Tensor, Tensor]:
        return self.tokens, torch.rand(self.tokens.shape)

    def lattice(self) -> Lattice:
        return make_lattice(self.tokens)


class ScriptedDrafter:
    """Proposes given tokens for every position of every row, through compaction.

    It stands for a drafter's model, its decoder and what caches it. Its states are the tokens.
    """

    causal = False
    uses_verifier_features = False
    feature_layers = ()
    eos, padding = DICTIONARY.eos(), DICTIONARY.pad()
    engine = EagerEngine()

    def __init__(self, script: Tensor) -> None:
        """``script``: ``(rows, positions)`` tokens."""
        self.script = script
        self.model = self.decoder = self

    def start(self, net_input: NetInput, verifier_out: EncoderOut | None, capacity: int) -> None:
        self.rows = torch.arange(len(self.script))

    def draft(self, prefixes: Prefixes, k: int) -> tuple[Tensor, object]:
        rows = self.rows if prefixes.rows is None else self.rows[torch.tensor(prefixes.rows)]
        index = torch.tensor(prefixes.lengths)[:, None] + torch.arange(k)
        index = index.clamp(max=self.script.size(1) - 1)
        tokens = self.script[rows].gather(1, index)
        return tokens[..., None], self.scores(tokens)

    def scores(self, tokens: Tensor) -> Any:
        """The scores of a draft's slots."""
        return ScriptedScores(tokens)

    def select(self, rows: list[int], width: int) -> None:
        self.rows = self.rows[rows]


def scripted_generator(
    verifier: TransformerModelBase,
    script: Tensor | ScriptedDrafter,
    controller: Controller | int,
    **given: Any,
) -> SpeculativeGenerator:
    """A generator whose drafter follows a script.

    Args:
        script: or a drafter that knows it.
        controller: or the k of constant blocks.
        given: other arguments of the generator.
    """
    if isinstance(controller, int):
        controller = Constant().ready(controller)
    drafter: Any = ScriptedDrafter(script) if isinstance(script, Tensor) else script
    return SpeculativeGenerator(verifier, (drafter, controller), DICTIONARY, **given)


def traced(generator: SpeculativeGenerator) -> SpeculativeGenerator:
    """The generator, whose hypotheses will have their steps."""
    generator.observers.append(TraceRecorder(DICTIONARY))
    return generator


def make_lattice(tokens: Tensor, others: tuple[int, ...] = (1, 2)) -> Lattice:
    """Candidates ``(rows, slots, 1 + others)``: the given tokens and some beside them, anyhow."""
    rows, slots = tokens.shape
    candidates = torch.stack([tokens, *((tokens + 4 + by) % len(DICTIONARY) for by in others)], -1)
    width = candidates.size(-1)
    order = torch.rand(rows, slots, width).argsort(-1)
    first = torch.randn(rows, width).sort(descending=True).values
    following = torch.randn(rows, slots - 1, width, width)
    return Lattice(candidates.gather(-1, order), first, following)


def make_result(
    accepted: list[int],
    verified: list[int],
    drafted: list[int] | None = None,
    *,
    ended: tuple[int, ...] = (),
    finished: tuple[int, ...] = (),
    limited: tuple[int, ...] = (),
    called: list[bool] | None = None,
    nodes: list[list[int]] | None = None,
    lengths: list[int] | None = None,
) -> StepResult:
    """The result of a step: every row commits a token of the verifier's too.

    Args:
        ended: rows whose last accepted token is EOS; ``finished``: others that end;
            ``limited``: others that the length limit ends.
        nodes: accepted ones, where drafts are trees.
        lengths: committed tokens in all; else those of the step.
    """
    rows = len(accepted)
    done = [row in (*ended, *finished, *limited) for row in range(rows)]
    committed = [count + (row not in ended) for row, count in enumerate(accepted)]
    paths = [range(1, count + 1) for count in accepted] if nodes is None else nodes
    width = 1 + max(map(len, paths))
    return StepResult(
        rows=list(range(rows)),
        drafted=drafted or verified,
        called=[True] * rows if called is None else called,
        verified=verified,
        accepted=accepted,
        committed=committed,
        finished=done,
        verifier_called=True,
        last=[DICTIONARY.eos() if end else 5 for end in done],
        lengths=committed if lengths is None else lengths,
        limited=[row in limited for row in range(rows)],
        sources=torch.tensor([[0, *path] + [0] * (width - 1 - len(path)) for path in paths]),
        tokens=torch.full((rows, width), 5),
    )


def corrupted(
    hypotheses: list[Any], width: int, corruption: float, vocabulary: int, seed: int
) -> Tensor:
    """A script ``(rows, width)``: the hypotheses' tokens, a part of them replaced at random."""
    rows = [h["tokens"] for h in hypotheses]
    script = torch.stack(
        [torch.nn.functional.pad(row, (0, width - len(row)), value=5) for row in rows]
    )
    torch.manual_seed(seed)
    noise = torch.randint(0, vocabulary, script.shape)
    return torch.where(torch.rand(script.shape) < corruption, noise, script)
