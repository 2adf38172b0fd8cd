"""Strict output is the verifier's greedy output, whatever the controller decides."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import pytest
import torch
from conftest import make_batch, make_dictionary, make_task, make_verifier
from drafters import make_block, make_causal, slot_logits
from fairseq.sequence_generator import SequenceGenerator
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import ScriptedDrafter, ScriptedHead, attach, corrupted

from specdec_plugins.decoding.acceptance import AcceptanceRule
from specdec_plugins.decoding.controllers import (
    NAMES,
    Bounds,
    Constant,
    ControllerOptions,
    Draft,
    Outcome,
)
from specdec_plugins.decoding.controllers.cost_aware import CostAware
from specdec_plugins.decoding.controllers.options import build_controller
from specdec_plugins.decoding.controllers.policies import Tree
from specdec_plugins.decoding.controllers.survival import CalibratedConfidence
from specdec_plugins.decoding.cost_profile import StepCosts
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.trace import TraceRecorder

DICTIONARY = make_dictionary()
K = 4
DRAFTERS: dict[str, dict[str, Any]] = {
    "block": {"src_embedding_copy": True},
    "causal": {},
    "causal, features": {"verifier_features": True},
    "causal, all shared": {
        "share_verifier_encoder": True,
        "verifier_features": True,
        "previous_token_head": True,
    },
}


class RandomController(Constant):
    """Any lengths within the bounds, drawn for every step and row; checks what it is told."""

    cuts = True

    def __init__(self, bounds: Bounds, seed: int, zeros: float) -> None:
        super().__init__(bounds)
        self._random = torch.Generator().manual_seed(seed)
        self._zeros = zeros
        self.asked: list[torch.Tensor] = []

    def _draw(self, rows: int) -> torch.Tensor:
        least, most = self.bounds.least, self.bounds.most
        lengths = torch.randint(least, most + 1, (rows,), generator=self._random)
        if not least and torch.rand((), generator=self._random) < self._zeros:
            lengths = torch.zeros_like(lengths)  # of all rows: no drafter's pass
        self.asked.append(lengths)
        return lengths

    def start(self, lengths: torch.Tensor) -> torch.Tensor:
        assert not lengths.any()
        self._committed = lengths
        self._drafted = self._draw(len(lengths))
        return self._drafted

    def verify_lengths(self, draft: Draft, drafted: torch.Tensor) -> torch.Tensor:
        assert torch.equal(drafted, self._drafted)
        assert draft.tokens.size(1) == drafted.max() > 0
        return self._cut((torch.rand(len(drafted), generator=self._random) * K).long(), drafted)

    def draft_lengths(self, outcome: Outcome) -> torch.Tensor:
        assert torch.equal(outcome.drafted, self._drafted)
        assert (outcome.accepted >= 0).all()
        assert (outcome.accepted <= outcome.verified).all()
        assert (outcome.verified <= outcome.drafted).all()
        assert (outcome.verified >= torch.minimum(outcome.drafted, self._least)).all()
        assert not (outcome.rejected & (outcome.accepted == outcome.verified)).any()
        more = outcome.lengths - self._committed - outcome.accepted
        assert ((more == 0) | (more == 1)).all()
        self._committed = outcome.lengths
        self._drafted = self._draw(len(outcome.drafted))
        return self._drafted

    @property
    def _least(self) -> torch.Tensor:
        return torch.tensor(self.bounds.least)

    def keep(self, rows: torch.Tensor) -> None:
        self._drafted, self._committed = self._drafted[rows], self._committed[rows]


class RandomTree(RandomController):
    """The same with trees, whose rows differ in their nodes; drafted anew or not."""

    cuts = False

    def __init__(self, bounds: Bounds, seed: int, zeros: float, depth: int) -> None:
        super().__init__(bounds, seed, zeros)
        self.depth = depth

    def redrafts(self, promised: list[float]) -> list[bool]:
        assert len(promised) == len(self._drafted)
        assert all(0 <= tokens <= self.bounds.most + 1e-6 for tokens in promised)
        anew: list[bool] = (torch.rand(len(promised), generator=self._random) < 0.3).tolist()
        return anew

    def draft_lengths(self, outcome: Outcome) -> torch.Tensor:
        if outcome.path is None:
            assert not self._drafted.any()
            assert not outcome.left_over
        else:
            nodes = outcome.path.nodes
            for row, accepted in enumerate(outcome.accepted.tolist()):
                way = nodes[row, : accepted + 1].tolist()
                assert way[0] == 0
                assert way == sorted(set(way))
                assert way[-1] <= outcome.drafted[row]
        return super().draft_lengths(outcome)


class HandMade:
    """Costs without a clock: ``slope`` a slot above 1 for a verifier's pass."""

    def __init__(self, slope: float) -> None:
        self.slope = slope

    def costs(self, generator: Any, sample: dict[str, Any], most: int) -> StepCosts:
        rows = len(sample["net_input"]["src_tokens"])
        slots = torch.arange(most + 1.0).expand(rows + 1, -1)
        return StepCosts(draft=self.slope * slots, verify=1 + self.slope * slots)


# Neither constant nor the drafter's own view.
HEAD = ScriptedHead(lambda states, probabilities: (states.mean(-1).sigmoid() + probabilities) / 2)


def make_controller(name: str, k: int, seed: int = 0, least: int = 0) -> Any:
    if name == "random":
        return RandomController(Bounds(least, k), seed, zeros=0.3)
    if name == "random tree":
        return RandomTree(Bounds(least, 3 * k), seed, zeros=0.3, depth=k)
    if name == "cost-aware, tree":
        controller = CostAware(Bounds(least, 3 * k), HandMade((0.0, 0.05, 0.4)[seed % 3]), depth=k)
        controller.PERIOD = 2
        return controller
    if name.startswith("cost-aware"):
        slope = (0.0, 0.05, 0.4)[seed % 3]
        known = {"cost-aware, head": HEAD, "cost-aware, confidence": CalibratedConfidence()}.get(
            name
        )
        controller = CostAware(Bounds(least, k), HandMade(slope), known)
        controller.PERIOD = 2
        return controller
    options = ControllerOptions(
        name.removesuffix(", refit"), least, refit_threshold=name.endswith("refit")
    )
    controller = build_controller(options, k, HEAD)
    if name.endswith("refit"):
        controller.PERIOD = 2  # type: ignore[attr-defined]
    return controller


VARIANTS = (
    "confidence, refit",
    "cost-aware, head",
    "cost-aware, confidence",
    "cost-aware, tree",
    "random",
    "random tree",
)
CONTROLLERS = sorted({*NAMES, *VARIANTS} - {"none"})


@cache
def verifier() -> Any:
    """Its targets end at many lengths."""
    model = make_verifier(seed=1).requires_grad_(False)
    model.decoder.output_projection.weight[2] *= 4
    return model


@cache
def drafter(name: str) -> Any:
    task = make_task(block_size=K)
    task.verifier = verifier()
    make = make_block if name == "block" else make_causal
    return make(task, **DRAFTERS[name])


def beam1(batch: Any, max_len_b: int) -> list[Any]:
    generator = SequenceGenerator([verifier()], DICTIONARY, beam_size=1, max_len_b=max_len_b)
    return [hypotheses[0] for hypotheses in generator.generate([verifier()], batch)]


def assert_exact(generator: SpeculativeGenerator, batch: Any, expected: list[Any]) -> list[Any]:
    """Greedy output, and every identity of the statistics and of the trace."""
    hypotheses = [h for (h,) in generator.generate([], batch)]
    for ours, theirs in zip(hypotheses, expected):
        assert ours["tokens"].tolist() == theirs["tokens"].tolist()
        torch.testing.assert_close(
            ours["positional_scores"].float(), theirs["positional_scores"], atol=1e-4, rtol=1e-4
        )
    told = generator.statistics
    steps = [step for h in hypotheses for step in h["trace"]]
    assert told.steps == told.verifier_calls == len(steps) == sum(told.acceptance_histogram)
    assert told.sentences == len(hypotheses)
    assert told.committed_tokens == sum(len(h["tokens"]) for h in expected)
    assert told.accepted_tokens + told.bonus_tokens == told.committed_tokens
    assert told.drafted_tokens == sum(len(step.drafted) for step in steps)
    assert told.verified_tokens == sum(step.verify_length for step in steps)
    assert told.accepted_tokens == sum(step.accepted for step in steps)
    least, most = generator.controller.bounds.least, generator.controller.length  # type: ignore[attr-defined]
    for step in steps:
        assert 0 <= step.accepted <= step.verify_length <= len(step.drafted)
        assert least <= step.verify_length <= most
        assert len(step.drafted) <= most
        if step.parents is not None:
            assert step.parents[: step.accepted] == list(range(-1, step.accepted - 1))
            assert len(step.parents) == len(step.drafted)
            assert all(-1 <= p != i for i, p in enumerate(step.parents))
    for h in hypotheses:
        committed = [token for step in h["trace"] for token in _committed(step)]
        assert committed == [DICTIONARY[token] for token in h["tokens"]]
        if len(h["tokens"]) > generator.limits.max_len_b:  # the limit forces EOS
            assert h["trace"][-1].bonus == committed[-1]
    return hypotheses


def _committed(step: Any) -> list[str]:
    return [*step.drafted[: step.accepted], *([] if step.bonus is None else [step.bonus])]


def make_generator(name: str | None, max_len_b: int) -> SpeculativeGenerator:
    return SpeculativeGenerator(
        verifier(),
        None if name is None else drafter(name),
        DICTIONARY,
        limits=GenerationLimits(max_len_b=max_len_b),
        recorder=TraceRecorder(DICTIONARY),
    )


BATCHES = st.sampled_from([[6], [1], [6, 2, 9, 1, 4, 7, 3, 5]])


@settings(max_examples=120, deadline=None)
@given(
    name=st.sampled_from(CONTROLLERS),
    lengths=BATCHES,
    seed=st.integers(0, 99),
    k=st.integers(1, 6),
    least=st.integers(0, 2),
    corruption=st.sampled_from([0.0, 0.2, 0.6, 1.0]),
    max_len_b=st.integers(1, 16),
)
def test_scripted(
    name: str,
    lengths: list[int],
    seed: int,
    k: int,
    least: int,
    corruption: float,
    max_len_b: int,
) -> None:
    batch = make_batch(lengths, seed=seed)
    expected = beam1(batch, max_len_b)
    script = corrupted(expected, max_len_b + 1, corruption, len(DICTIONARY), seed)
    generator = make_generator(None, max_len_b)
    attach(generator, script, k, make_controller(name, k, seed, min(least, k)))
    assert_exact(generator, batch, expected)
    # A second batch meets what the first one taught.
    other = make_batch(lengths[::-1], seed=seed + 1)
    expected = beam1(other, max_len_b)
    generator.drafter = ScriptedDrafter(  # type: ignore[assignment]
        corrupted(expected, max_len_b + 1, corruption, len(DICTIONARY), seed)
    )
    generator.statistics = type(generator.statistics)()
    assert_exact(generator, other, expected)


@settings(max_examples=120, deadline=None)
@given(
    name=st.sampled_from(CONTROLLERS),
    kind=st.sampled_from(sorted(DRAFTERS)),
    lengths=BATCHES,
    seed=st.integers(0, 99),
    k=st.integers(1, K),
    max_len_b=st.integers(1, 20),
)
def test_real_drafters(
    name: str, kind: str, lengths: list[int], seed: int, k: int, max_len_b: int
) -> None:
    batch = make_batch(lengths, seed=seed)
    generator = make_generator(kind, max_len_b)
    generator.controller, generator.block_size = make_controller(name, k, seed), k
    assert_exact(generator, batch, beam1(batch, max_len_b))


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(sorted(DRAFTERS)),
    lengths=BATCHES,
    seed=st.integers(0, 99),
    tau=st.sampled_from([0.0, 0.5, 2.0]),
)
def test_relaxed_trees_commit_what_the_rule_accepts(
    kind: str, lengths: list[int], seed: int, tau: float
) -> None:
    batch = make_batch(lengths, seed=seed)
    generator = make_generator(kind, 12)
    generator.rule = AcceptanceRule(3, tau)
    generator.controller = make_controller("random tree", K, seed)
    for row, (found,) in enumerate(generator.generate([], batch)):
        tokens = found["tokens"]
        before = torch.cat([tokens.new_tensor([DICTIONARY.eos()]), tokens[:-1]])[None]
        source = {name: value[row : row + 1] for name, value in batch["net_input"].items()}
        with torch.no_grad():
            logits, _ = verifier()(source["src_tokens"], source["src_lengths"], before)
        scores = logits[0].log_softmax(-1)
        scores[:, DICTIONARY.pad()] = -torch.inf
        scores[0, DICTIONARY.eos()] = -torch.inf
        inner = scores[:12] if len(tokens) > 12 else scores
        for own, token in zip(inner, tokens):
            assert (own > own[token]).sum() < 3
            assert own.max() - own[token] <= tau + 1e-9


@pytest.mark.parametrize("nodes", [1, 5, 12])
def test_features_are_those_of_the_committed_tokens(
    nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever way through the trees was accepted, and wherever its nodes stood."""
    generator = make_generator("causal, all shared", 12)
    generator.controller = Tree(Bounds(0, nodes), K, redraft_below=0.2)
    batches: list[Any] = []
    start = generator._start

    def noting(given: Any) -> Any:
        batches.append(start(given))
        return batches[-1]

    monkeypatch.setattr(generator, "_start", noting)
    several = 0
    for seed in range(12):
        batch = make_batch([6], seed=seed)
        ((hypothesis,),) = generator.generate([], batch)
        tokens = hypothesis["tokens"]
        several += max(hypothesis["accepted"])
        before = torch.cat([tokens.new_tensor([DICTIONARY.eos()]), tokens[:-1]])[None]
        source = batch["net_input"]
        with torch.no_grad():
            encoder_out = verifier().encoder(source["src_tokens"], source["src_lengths"])
            states, _ = verifier().decoder.extract_features(before, encoder_out=encoder_out)
        # fairseq's own attention weights are float32.
        found = batches[-1].features[:, : len(tokens)]
        torch.testing.assert_close(found, states, atol=1e-5, rtol=1e-5)
    assert several


class Decided(CostAware):
    """Of the choices for every size, those given."""

    def __init__(self, choices: list[int]) -> None:
        super().__init__(Bounds(0, K), HandMade(2.0))
        self.given = torch.tensor(choices)

    def _decide(self) -> None:
        super()._decide()
        self._choices = self.given


@pytest.mark.parametrize("choices", [[4, 4, 3, 2, 2, 1], [3, 3, 2, 1, 0, 0], [0] * 6])
def test_settled_batches(choices: list[int]) -> None:
    """They coast, with other lengths for other sizes, and give the same."""
    batch = make_batch([6, 2, 9, 1, 4], seed=3)
    expected = beam1(batch, 12)
    generator = make_generator("causal, features", 12)
    controller = Decided(choices)
    generator.controller, generator.block_size = controller, K
    coasted, drafted = 0, set()
    for _ in range(30):
        generator.statistics = type(generator.statistics)()
        hypotheses = assert_exact(generator, batch, expected)
        coasted += controller._coasting
        if controller._coasting:
            drafted |= {len(step.drafted) for h in hypotheses for step in h["trace"]}
    assert 15 < coasted < 30
    if choices[-1] == 0:
        assert drafted == {0}
    else:
        assert len(drafted) > 1
        assert drafted <= set(choices)


def test_batches_that_grow() -> None:
    """What was learned of smaller ones says nothing of a larger one."""
    generator = make_generator("causal, all shared", 12)
    generator.block_size = K
    generator.controller = CostAware(Bounds(0, 6), HandMade(0.02), depth=K)
    for size in (2, 2, 2, 2, 8, 8, 3):
        batch = make_batch(list(range(2, 2 + size)), seed=size)
        generator.statistics = type(generator.statistics)()
        assert_exact(generator, batch, beam1(batch, 12))


class Twice(Constant):
    """Drafts in the first step and in one after it: asked and told like any other."""

    def __init__(self, bounds: Bounds, second: int) -> None:
        super().__init__(bounds)
        self.second = second

    def start(self, lengths: torch.Tensor) -> torch.Tensor:
        self.step = 0
        return torch.full_like(lengths, self.length)

    def draft_lengths(self, outcome: Outcome) -> torch.Tensor:
        self.step += 1
        return torch.full_like(outcome.drafted, self.length * (self.step == self.second))


@pytest.mark.parametrize("kind", sorted({*DRAFTERS} - {"causal, all shared"}))
@pytest.mark.parametrize("lengths", [[6], [6, 2, 9, 1, 4]])
@pytest.mark.parametrize("second", [1, 2, 5])
def test_a_drafter_catches_up(kind: str, lengths: list[int], second: int) -> None:
    """After steps without a draft it drafts what it drafts at that position otherwise."""
    batch = make_batch(lengths, seed=3)
    generator = make_generator(kind, 20)
    generator.controller = Twice(Bounds(0, K), second)
    compared = 0
    for row, hypothesis in enumerate(assert_exact(generator, batch, beam1(batch, 20))):
        steps = hypothesis["trace"]
        if second >= len(steps):
            continue
        assert [len(step.drafted) for step in steps if step.drafted] == [K, K]
        prefix = hypothesis["tokens"][: sum(step.committed for step in steps[:second])]
        assert steps[second].drafted == fresh_draft(kind, batch, row, prefix)
        compared += 1
    assert compared


def fresh_draft(kind: str, batch: Any, row: int, prefix: torch.Tensor) -> list[str]:
    """The drafter's own choice after a prefix, from the training pass."""
    model = drafter(kind)
    net_input = batch["net_input"]
    length = int(net_input["src_lengths"][row])
    source = net_input["src_tokens"][row : row + 1, -length:]
    target = torch.nn.functional.pad(prefix, (0, K), value=5)[None]
    cuts = torch.tensor([[len(prefix)]])
    lengths = torch.tensor([length])
    with torch.no_grad():
        logits = slot_logits(model(source, lengths, target, cuts))[0, 0]
    logits[..., DICTIONARY.pad()] = -torch.inf
    return [DICTIONARY[token] for token in logits.argmax(-1).tolist()]


def test_none_makes_no_pass_of_the_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    model = drafter("causal")
    monkeypatch.setattr(type(model), "encode", None)
    batch = make_batch([6, 2, 9])
    generator = SpeculativeGenerator(
        verifier(),
        model,
        DICTIONARY,
        limits=GenerationLimits(max_len_b=12),
        recorder=TraceRecorder(DICTIONARY),
        controller=ControllerOptions("none"),
    )
    assert generator.drafter is None
    assert_exact(generator, batch, beam1(batch, 12))


def test_the_oracle_verifies_what_is_accepted_and_nothing_else() -> None:
    batch = make_batch([6, 2, 9, 1, 4])
    expected = beam1(batch, 15)
    script = corrupted(expected, 16, 0.3, len(DICTIONARY), 1)
    plain, oracle = make_generator(None, 15), make_generator(None, 15)
    attach(plain, script, 4)
    attach(oracle, script, 4, make_controller("oracle", 4))
    whole, cut = assert_exact(plain, batch, expected), assert_exact(oracle, batch, expected)
    assert [h["accepted"] for h in whole] == [h["accepted"] for h in cut]
    told = oracle.statistics
    assert told.verified_tokens == told.accepted_tokens == plain.statistics.accepted_tokens > 0
    assert told.drafted_tokens < plain.statistics.drafted_tokens
    assert all(len(step.drafted) == (4 if step.accepted else 0) for h in cut for step in h["trace"])


@pytest.mark.parametrize("question", ["start", "verify_lengths", "draft_lengths", "redrafts"])
def test_what_a_controller_takes_is_timed(question: str) -> None:
    """As a phase of its own, whichever of its questions it is slow to answer."""

    class Slow(Constant):
        cuts = question == "verify_lengths"
        depth = 3 if question == "redrafts" else 0
        asked = 0

        def start(self, lengths: torch.Tensor) -> torch.Tensor:
            return torch.full_like(lengths, 3)

        def draft_lengths(self, outcome: Any) -> torch.Tensor:
            return torch.full_like(outcome.drafted, 3)

    def slowly(*args: Any) -> Any:
        controller.asked += 1
        time.sleep(0.002)
        return answer(*args)

    controller = Slow(Bounds(1, 3))
    answer = getattr(controller, question)
    setattr(controller, question, slowly)
    generator = SpeculativeGenerator(
        verifier(), drafter("causal"), DICTIONARY, limits=GenerationLimits(max_len_b=6)
    )
    generator.controller = controller
    assert generator.generate([], make_batch([6, 2, 9]))
    seconds = generator.statistics.report()["seconds"]
    assert controller.asked > 0
    assert 0.002 * controller.asked <= seconds["control"] < seconds["total"]
