"""Drafts from texts and copies never change strict output, nor the distribution of samples."""

from __future__ import annotations

from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import examples, make_batch, make_verifier
from decoding.acceptance.test_exact_sampling import Chance, Watched, furthest, leviathan
from fairseq.models.transformer import TransformerModelBase
from helpers.decoding.controlled import verifier, verifier_for
from helpers.decoding.scripted import DICTIONARY
from helpers.decoding.shared_sessions import NAMES as ENGINES
from helpers.decoding.shared_sessions import TIES, engine_of
from helpers.decoding.strict import assert_same_words
from helpers.models import tiny_vocabulary as tiny
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.decoding.acceptance import SamplingRule, rules, sampling
from specdec_plugins.decoding.batch import Batch
from specdec_plugins.decoding.controllers.base import CONTROLLERS
from specdec_plugins.decoding.controllers.simple import NoDrafts
from specdec_plugins.decoding.drafting import DraftSource
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.decoding.step_result import Hypothesis
from specdec_plugins.decoding.text_drafting import (
    BEGIN_AGAIN,
    DRAFTS,
    CopyDrafting,
    Credit,
    TextDrafting,
)
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.step import Run, Step
from specdec_plugins.host.fairseq_types import Sample

LIMITS = GenerationLimits(max_len_b=20)
EOS, PAD = DICTIONARY.eos(), DICTIONARY.pad()
SYMBOLS = range(len(DICTIONARY))
TEXTS = DraftSource(partial(TextDrafting.of, PAD, SYMBOLS))


def copied(generator: SpeculativeGenerator) -> DraftSource:
    return DraftSource(partial(CopyDrafting, generator))


def generator(
    source: DraftSource,
    controller: str = "constant",
    k: int = 64,
    by: str = "eager",
) -> SpeculativeGenerator:
    """The verifier with a source of drafts; ``by``: one of ``shared_sessions.NAMES``."""
    drafts = (lambda: source), CONTROLLERS[controller]().ready(k)
    how: dict[str, Any] = {"limits": LIMITS, "engine": engine_of(by)}
    return SpeculativeGenerator(verifier_for(by), drafts, DICTIONARY, **how)


@cache
def greedy(
    lengths: tuple[int, ...], seed: int, forced: bool = False
) -> tuple[list[list[Hypothesis]], torch.Tensor | None]:
    prefix = torch.tensor([[4], [5], [PAD]] * len(lengths))[: len(lengths)] if forced else None
    plain = SpeculativeGenerator(verifier(), None, DICTIONARY, limits=LIMITS)
    return plain.generate([], make_batch(list(lengths), seed=seed), prefix), prefix


def assert_same(
    found: list[list[Hypothesis]], expected: list[list[Hypothesis]], batch: Sample, engine: str
) -> None:
    """The verifier's output in float64, up to ties in the precision of an engine."""
    if engine == "eager":
        assert_greedy(found, expected)
    ours = [h for (h,) in found]
    stock = [h for (h,) in expected]
    assert_same_words(ours, stock, batch, verifier(), TIES[engine])


def assert_greedy(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    for (one,), (other,) in zip(found, expected, strict=True):
        assert one["tokens"].tolist() == other["tokens"].tolist()
        scores = one["positional_scores"], other["positional_scores"]
        torch.testing.assert_close(*scores, atol=1e-9, rtol=1e-9)


LENGTHS = st.sampled_from([(5,), (3, 9, 6), (1, 2, 3, 4, 5, 6, 7, 8)])
CASES = {
    "lengths": LENGTHS,
    "seed": st.integers(0, 9),
    "controller": st.sampled_from(["constant", "heuristic", "confidence"]),
    "forced": st.booleans(),
    "k": st.integers(1, 64),
}


@pytest.mark.parametrize("engine", ENGINES)
@examples(30)
@given(**CASES, data=st.data())
def test_any_text_gives_the_verifiers_words(
    engine: str,
    lengths: tuple[int, ...],
    seed: int,
    controller: str,
    forced: bool,
    k: int,
    data: st.DataObject,
) -> None:
    """The verifier's own output with tokens replaced, left out or added at any place."""
    expected, prefix = greedy(lengths, seed, forced)
    texts = []
    for (hypothesis,) in expected:
        text = hypothesis["tokens"].tolist()
        for _ in range(data.draw(st.integers(0, 3))):
            at = data.draw(st.integers(0, len(text)))
            token = data.draw(st.integers(4, len(DICTIONARY) - 1))
            text[at : at + data.draw(st.integers(0, 1))] = [token] * data.draw(st.integers(0, 2))
        texts.append(torch.tensor([*text, EOS]))
    batch = make_batch(list(lengths), seed=seed)
    batch["net_input"][DRAFTS] = torch.nn.utils.rnn.pad_sequence(texts, True, PAD)
    found = generator(TEXTS, controller, k, engine).generate([], batch, prefix)
    assert_same(found, expected, batch, engine)


@pytest.mark.parametrize("engine", ENGINES)
@examples(30)
@given(**CASES, noise=st.sampled_from([0.0, 0.02, 0.3]))
def test_any_copy_gives_the_verifiers_words(
    engine: str,
    lengths: tuple[int, ...],
    seed: int,
    controller: str,
    forced: bool,
    k: int,
    noise: float,
) -> None:
    """Also a copy that often disagrees, as its weights are others; ONNX Runtime's is in int8."""
    expected, prefix = greedy(lengths, seed, forced)
    copy = copied(
        SpeculativeGenerator(
            noisy(noise, engine),
            None,
            DICTIONARY,
            limits=LIMITS,
            engine=engine_of(engine, "int8"),
            reads_sources=False,
        )
    )
    batch = make_batch(list(lengths), seed=seed)
    made = generator(copy, controller, k, engine)
    assert_same(made.generate([], batch, prefix), expected, batch, engine)
    if engine == "eager" and not noise and k == 64 and controller != "confidence":
        assert made.statistics.verifier_calls <= 2 * len(lengths) + len(lengths) * bool(forced)


def test_a_copy_reads_what_the_verifier_has_encoded() -> None:
    """It prepares neither an encoder nor the keys and values of sources."""
    prepared: list[str] = []

    class Watching(EagerEngine):
        def prepare(self, step: Step) -> Run:
            prepared.append(type(step).__name__)
            return super().prepare(step)

    model, engine = verifier(), Watching("float64")
    copy = SpeculativeGenerator(
        model, None, DICTIONARY, limits=LIMITS, engine=engine, reads_sources=False
    )
    assert prepared == ["VerifierStep"]
    batch = make_batch([3, 9, 6], seed=3)
    expected, _ = greedy((3, 9, 6), 3)
    made = generator(copied(copy))
    assert_greedy(made.generate([], batch), expected)
    assert made.statistics.steps == 3


@pytest.mark.parametrize("k", [1, 4, 64])
def test_a_copy_that_always_disagrees_costs_little(k: int) -> None:
    """After its first draft it may write a token for every sixteen committed ones, and its passes
    are counted."""
    wrong = make_verifier(seed=1)
    wrong.load_state_dict(verifier().state_dict())
    projection = wrong.decoder.output_projection
    projection.weight = torch.nn.Parameter(-projection.weight)
    limits = GenerationLimits(max_len_b=60, min_len=59)
    copy, passes = SpeculativeGenerator(wrong, None, DICTIONARY, limits=limits), 0
    score = copy._verifier.score

    def counted(last: Any, draft: Any, lengths: Any) -> Any:
        nonlocal passes
        passes += len(lengths)
        return score(last, draft, lengths)

    copy._verifier.score = counted  # type: ignore[method-assign]
    credit = Credit()
    source = DraftSource(partial(CopyDrafting, copy, credit=credit))
    drafts = (lambda: source), CONTROLLERS["constant"]().ready(k)
    made = SpeculativeGenerator(verifier(), drafts, DICTIONARY, limits=limits)
    plain = SpeculativeGenerator(verifier(), None, DICTIONARY, limits=limits)
    for seed in range(5):
        batch = make_batch([6], seed=seed)
        assert_greedy(made.generate([], batch), plain.generate([], batch))
    assert made.statistics.accepted_tokens == 0
    assert made.statistics.drafter_calls == passes
    assert passes <= min(k, 60) + made.statistics.committed_tokens / 16
    assert credit.tokens < BEGIN_AGAIN + 2


@pytest.mark.parametrize("handed_on", [True, False])
def test_a_copy_has_its_credit_from_the_sentence_before(handed_on: bool) -> None:
    """Unless drafts must not depend on earlier sentences; a copy that agrees earns it back."""
    copy = SpeculativeGenerator(verifier(), None, DICTIONARY, limits=LIMITS)
    drafting = partial(CopyDrafting, copy, credit=Credit(1.0) if handed_on else None)
    made = generator(DraftSource(drafting))
    steps = [made.generate([], make_batch([6], seed=3))[0][0]["steps"] for _ in range(3)]
    assert steps[0] > 1 if handed_on else steps[0] == 1
    assert steps[-1] == 1


@cache
def noisy(noise: float, engine: str = "eager") -> TransformerModelBase:
    """The verifier with other weights, in the precision of an engine."""
    model = make_verifier(seed=1).requires_grad_(False)
    model.load_state_dict(verifier().state_dict())
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.add_(noise * parameter.std().nan_to_num() * torch.randn_like(parameter))
    return model if engine == "eager" else model.float()


@pytest.mark.parametrize("controller", ["constant", "heuristic"])
@pytest.mark.parametrize("rule", [SamplingRule(), SamplingRule(sampling_topk=3)])
@pytest.mark.parametrize("text", [[4, 5, 4, 5, 2], [5, 2], [3, 3, 3, 3], [2], None])
def test_samples_have_the_verifiers_probabilities(
    text: list[int] | None, rule: SamplingRule, controller: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ways to each output are added up, for texts and for a copy with other weights."""
    limits, statistics = GenerationLimits(max_len_b=3), DecodingStatistics()
    other = make_verifier(tiny.TASK, seed=4)
    copy = SpeculativeGenerator(other, None, tiny.DICTIONARY, limits=limits)
    source = copied(copy) if text is None else TEXTS
    drafts = (lambda: source), NoDrafts()
    made = SpeculativeGenerator(tiny.VERIFIER, drafts, tiny.DICTIONARY, rule=rule, limits=limits)
    found: dict[tuple[int, ...], float] = {}
    paths: list[tuple[int, ...]] = [()]
    while paths:
        chance = Chance(paths, leviathan)
        monkeypatch.setattr(rules, "draw", chance.draw_own)
        monkeypatch.setattr(sampling, "draw", chance.draw_one)
        monkeypatch.setattr(sampling, "accepts", chance.accepts)
        sample = tiny.sample_of(len(paths))
        if text is not None:
            sample["net_input"][DRAFTS] = torch.tensor([text] * len(paths))
        watched = Watched(CONTROLLERS[controller]().ready(3), chance)
        for (hypothesis,), weight in zip(made.decode(sample, watched, statistics), chance.weights):
            output = tuple(hypothesis["tokens"].tolist())
            found[output] = found.get(output, 0.0) + weight
        paths = chance.others
    assert furthest(found, tiny.distribution(3, 1.0, rule)) < 1e-9
    assert statistics.verified_tokens > 0


def test_the_source_is_a_draft() -> None:
    """Tokens of the source go by their symbols' numbers in the target's dictionary."""
    batch = make_batch([6, 4], seed=3)
    symbols = list(SYMBOLS)
    symbols[4], symbols[5] = 5, 4
    expected, _ = greedy((6, 4), 3)
    reads = []

    def drafting(batch: Batch, draws: bool) -> TextDrafting:
        reads.append(TextDrafting.of(PAD, symbols, batch, draws))
        return reads[-1]

    assert_greedy(generator(DraftSource(drafting)).generate([], batch), expected)
    sources = batch["net_input"]["src_tokens"].tolist()
    assert reads[0]._texts == [[symbols[i] for i in row if i != PAD] for row in sources]


@pytest.mark.parametrize(
    ("committed", "near", "expected"),
    [
        ([7, 8, 9], 0, 3),
        ([1, 8, 9], 0, 3),
        ([8, 9, 7], 4, 4),
        # The last word stands nearer, but not after the others.
        ([9, 7, 9], 3, 5),
        ([1, 7, 9], 3, 5),
        ([7], 4, 4),
        ([7], 0, 1),
        ([5, 6], 0, None),
        ([9, 2], 0, None),
    ],
)
def test_where_a_text_goes_on(committed: list[int], near: int, expected: int | None) -> None:
    """After the last 3, 2 or 1 committed tokens, at the nearest place; never after its end."""
    batch: Any = SimpleNamespace(rows=[0], lengths=[len(committed)], tokens=[committed])
    drafting = TextDrafting([[7, 8, 9, 7, 9, 2]], batch, False)
    drafting._next = [near]
    drafting._find(batch, [0])
    assert (None if 0 in drafting._lost else drafting._next[0]) == expected
