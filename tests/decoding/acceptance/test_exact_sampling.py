"""The probability of every sampled output is the verifier's own: all ways to it are added up."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.decoding.scripted import ScriptedHead
from helpers.models.tiny_vocabulary import (
    DICTIONARY,
    PAD,
    TINY_DRAFTERS,
    VERIFIER,
    Output,
    distribution,
    sample_of,
)
from torch import Tensor

from specdec_plugins.decoding import drafting
from specdec_plugins.decoding.acceptance import SamplingRule, rules, sampling
from specdec_plugins.decoding.build import build_generator
from specdec_plugins.decoding.controllers.base import Controller
from specdec_plugins.decoding.controllers.simple import (
    AcceptanceHeadController,
    Confidence,
    Constant,
    Heuristic,
    NoDrafts,
    Tree,
)
from specdec_plugins.decoding.drafts import ChainDraft, Draft
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.decoding.step_result import StepResult
from specdec_plugins.models.lattice import Lattice, SlotLogits, SlotScores

pytestmark = pytest.mark.no_cover

Path = tuple[int, ...]
"""What comes of each choice, one after another; choices with a single outcome are left out."""
Coin = Callable[[float, float], float]

HEAD = ScriptedHead(lambda states, probabilities: torch.where(probabilities > 0.3, 0.95, 0.4))
"""Two slots take as long as a step that verifies nothing: those that survive with less than half
are not verified."""
LATTICE = SlotLogits.lattice
ALL, TOP_K, TOP_P = SamplingRule(), SamplingRule(sampling_topk=2), SamplingRule(sampling_topp=0.7)
BOTH = SamplingRule(sampling_topk=3, sampling_topp=0.8)


class Chance:
    """Decides in place of the random numbers, in every row of a batch by a path of its own.

    Where a row's path ends it goes on with the first possible outcome, and the others are noted:
    each is the end of a path still to be gone. Of what is drawn for several places together, only
    those are chosen that come to be read. The others hold what would show if it were read: pad, a
    candidate that is not drawn, or acceptance after a rejection.
    """

    def __init__(self, paths: list[Path], coin: Coin) -> None:
        self.paths = [list(path) for path in paths]
        self.weights = [1.0] * len(paths)
        self.others: list[Path] = []
        self._made = [0] * len(paths)
        self._coin = coin

    def begin(self, rows: list[int], lengths: list[int]) -> None:
        """A step of some rows; a batch may be drafted wider than one of them is asked to be."""
        self.rows, self._lengths = rows, lengths

    def verify(self, draft: Draft) -> None:
        """What is verified is known."""
        self._draft, self._lengths = draft, draft.drafted

    def choose(self, at: int, weights: list[float]) -> int:
        """One of several outcomes by their weights, for the row that is the ``at``-th now."""
        outcomes = [outcome for outcome, weight in enumerate(weights) if weight > 0]
        if len(outcomes) == 1:
            return outcomes[0]
        row = self.rows[at]
        path, made = self.paths[row], self._made[row]
        if made == len(path):
            self.others += [(*path, outcome) for outcome in outcomes[1:]]
            path.append(outcomes[0])
        self._made[row] += 1
        assert path[made] in outcomes, "what is chosen depends on the other rows"
        self.weights[row] *= weights[path[made]] / math.fsum(weights)
        return path[made]

    def draw_lattice(self, probabilities: Tensor) -> Tensor:
        """Of a draft's first slot; then of the others, after each candidate of the one before."""
        if probabilities.dim() == 2:
            self._first = [self.choose(at, row) for at, row in enumerate(probabilities.tolist())]
            return torch.tensor(self._first)
        found = probabilities.argmin(-1)
        for at, (slots, place) in enumerate(zip(probabilities.tolist(), self._first)):
            for slot, after in enumerate(slots[: self._lengths[at] - 1]):
                found[at, slot, place] = self.choose(at, after[place])
                place = int(found[at, slot, place])
        return found

    def draw_own(self, probabilities: Tensor) -> Tensor:
        """The verifier's tokens: after the last committed one, and as far as the draft has them."""
        found = torch.full(probabilities.shape[:-1], PAD)
        for at, slots in enumerate(probabilities.tolist()):
            drafted = self._draft.tokens[at, : self._lengths[at]].tolist()
            parents = self._draft.links.after.expand_as(self._draft.tokens)[at].tolist()
            node: int | None = 0
            while node is not None:
                token = found[at, node] = self.choose(at, slots[node])
                after = enumerate(zip(parents, drafted), start=1)
                node = next(
                    (n for n, (parent, word) in after if parent == node and word == token), None
                )
        return found

    def draw_one(self, probabilities: Tensor) -> Tensor:
        """Of what is left, one token a row."""
        return torch.tensor([self.choose(at, row) for at, row in enumerate(probabilities.tolist())])

    def accepts(self, p: Tensor, q: Tensor) -> Tensor:
        """Up to the first rejection."""
        found = torch.ones(p.shape, dtype=torch.bool)
        for at, row in enumerate(torch.stack([p, q.to(p.dtype)], -1).tolist()):
            for slot, (one, other) in enumerate(row[: self._lengths[at]]):
                good = self._coin(one, other)
                found[at, slot] = self.choose(at, [1 - good, good]) == 1
                if not found[at, slot]:
                    break
        return found


class Watched(Controller):
    """Does what another controller does; chance learns from it what there is to decide."""

    max_length = 0

    def __init__(self, controller: Controller, chance: Chance) -> None:
        super().__init__()
        self.needs_confidences = controller.needs_confidences
        self.max_length, self.block_size = controller.max_length, controller.block_size
        self.trees, self.reuse_above = controller.trees, controller.reuse_above
        self._controller, self._chance = controller, chance

    def start(self, rows: int) -> list[int]:
        lengths = self._controller.start(rows)
        self._chance.begin(list(range(rows)), lengths)
        return lengths

    def verify_lengths(self, draft: Draft) -> Tensor | None:
        lengths = self._controller.verify_lengths(draft)
        self._chance.verify(draft if lengths is None else draft.cut(lengths.tolist()))
        return lengths

    def observe(self, result: StepResult) -> list[int]:
        lengths = self._controller.observe(result)
        kept = result.kept
        self._chance.begin([result.rows[i] for i in kept], [lengths[i] for i in kept])
        return lengths


def leviathan(p: float, q: float) -> float:
    return min(1.0, p / q)


def enumerate_outputs(
    options: Controller,
    how: SamplingRule = ALL,
    temperature: float = 1.0,
    *,
    drafter: str = "causal",
    length: int = 3,
    k: int = 2,
    coin: Coin = leviathan,
    penalty: float = 1.0,
) -> tuple[dict[Output, float], DecodingStatistics]:
    """The probability of each output, and how all ways to them together went."""
    limits = GenerationLimits(max_len_b=length, temperature=temperature, repetition_penalty=penalty)
    head, statistics = HEAD if options.asks_head else None, DecodingStatistics()
    found: dict[Output, float] = defaultdict(float)
    with pytest.MonkeyPatch.context() as patches:
        if not isinstance(options, Tree):
            for kind in (SlotLogits, Lattice):
                patches.setattr(kind, "lattice", lambda self: three_in_double(lattice_of(self)))
        generator = build_generator(
            VERIFIER,
            TINY_DRAFTERS[drafter],
            DICTIONARY,
            block_size=k,
            rule=how,
            limits=limits,
            controller=options,
            head=head,
        )
        paths: list[Path] = [()]
        while paths:
            chance = Chance(paths, coin)
            patches.setattr(drafting, "draw", chance.draw_lattice)
            patches.setattr(rules, "draw", chance.draw_own)
            patches.setattr(sampling, "draw", chance.draw_one)
            patches.setattr(sampling, "accepts", chance.accepts)
            controller = Watched(options.ready(k, head), chance)
            hypotheses = generator.decode(sample_of(len(paths)), controller, statistics)
            for (hypothesis,), weight in zip(hypotheses, chance.weights):
                found[tuple(hypothesis["tokens"].tolist())] += weight
            paths = chance.others
    return found, statistics


def lattice_of(scores: SlotScores) -> Lattice:
    """What the drafter's own method makes of them."""
    return scores if isinstance(scores, Lattice) else LATTICE(scores)


def three_in_double(lattice: Lattice) -> Lattice:
    """Three candidates a slot; and what is drawn by float32 probabilities is drawn by others than
    they say, by 1e-8."""
    first, following = lattice.first[:, :3].double(), lattice.following[..., :3, :3].double()
    return Lattice(lattice.candidates[..., :3], first, following)


def furthest(found: dict[Output, float], expected: dict[Output, float]) -> float:
    """The largest difference of the probabilities of an output."""
    outputs = found.keys() | expected.keys()
    return max(abs(found.get(output, 0.0) - expected.get(output, 0.0)) for output in outputs)


NONE, WHOLE, HEURISTIC = NoDrafts(), Constant(), Heuristic()
CONFIDENCE = Confidence(confidence_threshold=0.3)
HEADED = AcceptanceHeadController(stop_threshold=0.4)
TREE = Tree(tree_nodes=5)
ANEW = Tree(tree_nodes=5, redraft_below=math.inf)


@pytest.mark.parametrize(
    ("options", "given"),
    [
        (NONE, {}),
        (WHOLE, {"length": 2}),
        (WHOLE, {"length": 2, "drafter": "block"}),
        (WHOLE, {"k": 1}),
        (CONFIDENCE, {"length": 2}),
        (HEADED, {"length": 2}),
        (HEURISTIC, {"how": TOP_P}),
        (TREE, {}),
        (TREE, {"drafter": "block", "k": 3}),
        (ANEW, {}),
    ],
)
def test_every_output_has_the_verifiers_probability(
    options: Controller, given: dict[str, Any]
) -> None:
    found, statistics = enumerate_outputs(options, **given)
    expected = distribution(given.get("length", 3), 1.0, given.get("how", ALL))
    assert furthest(found, expected) < 1e-9
    if options is not NONE:
        assert statistics.accepted_tokens > 0
    if options in (CONFIDENCE, HEADED):
        assert statistics.verified_tokens < statistics.drafted_tokens


@pytest.mark.parametrize(
    ("options", "given"),
    [
        (NONE, {}),
        (WHOLE, {"length": 2, "how": ALL}),
        (WHOLE, {"drafter": "block"}),
        (CONFIDENCE, {}),
        (TREE, {"how": TOP_P}),
        (ANEW, {"how": TOP_K}),
    ],
)
def test_with_a_repetition_penalty(options: Controller, given: dict[str, Any]) -> None:
    given = {"length": 3, "how": BOTH, **given}
    found, _ = enumerate_outputs(options, temperature=0.9, penalty=1.7, **given)
    of = given["length"], 0.9, given["how"]
    assert furthest(found, distribution(*of, 1.7)) < 1e-9
    assert furthest(found, distribution(*of)) > 1e-3


@pytest.mark.parametrize(
    "coin", [lambda p, q: p, lambda p, q: 1.0, lambda p, q: min(1.0, p / q) ** 2]
)
def test_wrong_acceptance_is_found_out(coin: Coin) -> None:
    found, _ = enumerate_outputs(WHOLE, TOP_P, length=2, coin=coin)
    assert sum(found.values()) == pytest.approx(1)
    assert furthest(found, distribution(2, 1.0, TOP_P)) > 1e-3


def test_to_leave_out_unlikely_tokens_unseen_would_skew_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That is why one token more than a controller says is verified of what was drawn."""
    cut = ChainDraft.cut
    monkeypatch.setattr(
        ChainDraft, "cut", lambda draft, lengths: cut(draft, [n - 1 for n in lengths])
    )
    found, _ = enumerate_outputs(CONFIDENCE, TOP_P, length=2)
    assert sum(found.values()) == pytest.approx(1)
    assert furthest(found, distribution(2, 1.0, TOP_P)) > 1e-3
