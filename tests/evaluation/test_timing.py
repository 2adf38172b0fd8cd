"""A timed run: whose steps are whose, and what is counted."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock

import pytest
from drafters import save_pair
from scripted import make_result

from specdec_plugins.decoding.acceptance import RelaxedRule, SamplingRule
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.evaluation.systems import Choice, System, list_systems
from specdec_plugins.evaluation.timing import RowCounts, plan_batches, timed_run, warm_up
from specdec_plugins.files.input import Line
from specdec_plugins.inference import Settings, Translator, load_translator

TEXTS = ["w3 w4 w5", "", "w7", "w1 w2 w3 w4 w5 w6 w7", " ", "w9 w8 w7 w6", "w2 w2"]
LINES = [Line(number, text) for number, text in enumerate(TEXTS, start=1)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = save_pair(tmp_path_factory.mktemp("pair"))
    files = {"path": str(folder / "drafter.pt"), "ar_path": str(folder / "verifier.pt")}
    return Settings(data=str(folder), limits=GenerationLimits(1.0, 4), **files)


def load(pair: Settings, name: str, batch: int) -> tuple[System, Translator]:
    controllers = ("constant", "confidence", "oracle")
    choice = Choice(controllers, swept={"confidence_threshold": (0.2,)})
    (system,) = (s for s in list_systems(pair, choice, 4) if s.name == name)
    return system, load_translator(replace(system.settings, batch=batch))


def test_counts_are_of_the_rows_that_steps_had() -> None:
    """Three rows, of which the second leaves after its first step and the third after two; and of
    the next batch the first, whose place the last one takes."""
    counts, anything = RowCounts(), Mock()
    for steps, drafted, verified in (
        ([([0, 1, 2], [4, 3, 2], [4, 2, 1]), ([0, 2], [10, 20], [5, 7]), ([0], [100], [0])],
         [114, 3, 22], [9, 2, 8]),
        ([([0, 1, 2], [4, 3, 2], [4, 2, 1]), ([2, 1], [10, 20], [5, 7])], [4, 23, 12], [4, 9, 6]),
    ):  # fmt: skip
        counts.begin(3)
        for rows, *lengths in steps:
            result = replace(make_result([0] * len(rows), lengths[1], lengths[0]), rows=rows)
            counts(anything, anything, result, anything)
        assert (counts.drafted, counts.verified) == (drafted, verified)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    "name", ["AR", "drafter", "constant k 2", "confidence 0.2 k 4", "oracle k 4"]
)
def test_a_run_of_every_kind(pair: Settings, name: str, batch: int) -> None:
    system, translator = load(pair, name, batch)
    batches = plan_batches(translator.codec, LINES, batch)
    expected = [result.text for result in translator.translate(TEXTS)]
    run = timed_run(system, translator, batches, 1)
    columns = run.by_sentence
    assert columns.line == [1, 3, 4, 6, 7]
    assert columns.output == [expected[number - 1] for number in columns.line]
    for total in ("steps", "drafted_tokens", "verified_tokens", "accepted_tokens"):
        assert sum(getattr(columns, total)) == getattr(run, total), total
    assert sum(columns.committed_tokens) == run.committed_tokens > 0
    assert run.tokens_per_second == pytest.approx(run.committed_tokens / run.seconds)
    assert 0 <= run.control_seconds < run.seconds
    assert run.control_seconds > 0 or name == "drafter"
    assert run.verified_discard_rate <= run.discard_rate or name == "drafter"
    assert (run.policy, run.kind, run.batch, run.round) == (name.split()[0],) * 2 + (batch, 1)
    assert (run.rule, run.rule_options) == ("strict", {"beta": 1, "tau": 0.0})
    assert run.options == system.describe()
    # A batch's time is that of each of its sentences, and there are two batches of 3 and 2.
    distinct = {columns.seconds[columns.line.index(line.number)] for line in batches[0]}
    assert len(distinct) == 1
    total = sum(columns.seconds[columns.line.index(group[0].number)] for group in batches)
    assert total == pytest.approx(run.seconds, abs=1e-4)
    assert timed_run(system, translator, batches, 2).by_sentence.output == []


def test_a_sentence_counts_the_same_alone_and_in_a_batch(pair: Settings) -> None:
    """Verify lengths differ from row to row, so that rows that were mixed up would show."""
    pair = replace(pair, rule=RelaxedRule(8, 50.0))
    alone, together = (
        timed_run(system, translator, plan_batches(translator.codec, LINES, size), 1).by_sentence
        for size in (1, 3)
        for system, translator in [load(pair, "confidence 0.2 k 4", size)]
    )
    for name in ("steps", "drafted_tokens", "verified_tokens", "accepted_tokens", "output"):
        assert getattr(alone, name) == getattr(together, name), name
    assert len(set(alone.verified_tokens)) > 2
    assert len(set(alone.accepted_tokens)) > 2


def test_batches_are_of_like_lengths(pair: Settings) -> None:
    _, translator = load(pair, "AR", 2)
    numbers = [[line.number for line in b] for b in plan_batches(translator.codec, LINES, 2)]
    assert numbers == [[4, 6], [1, 7], [3]]
    alone = [[line.number for line in b] for b in plan_batches(translator.codec, LINES, 1)]
    assert alone == [[1], [3], [4], [6], [7]]


def test_warm_up_is_not_counted(pair: Settings) -> None:
    system, translator = load(pair, "constant k 2", 1)
    batches = plan_batches(translator.codec, LINES, 1)
    warm_up(translator, batches[:2])
    assert translator.statistics.sentences == 2
    assert timed_run(system, translator, batches, 1).sentences == 5


def test_a_run_is_traced_in_a_pass_of_its_own(pair: Settings) -> None:
    """Which is neither counted nor repeated where outputs are the same."""
    system, translator = load(pair, "confidence 0.2 k 4", 2)
    batches = plan_batches(translator.codec, LINES, 2)
    run = timed_run(system, translator, batches, 1, trace=True)
    columns = run.by_sentence
    assert [len(steps) for steps in columns.trace] == columns.steps
    accepted = [[step.accepted for step in steps] for steps in columns.trace]
    assert accepted == columns.accepted_by_step
    for name, own in (("drafted_tokens", "drafted"), ("committed_tokens", "committed")):
        told = [
            sum(len(value) if own == "drafted" else value for value in values)
            for values in ([getattr(step, own) for step in steps] for steps in columns.trace)
        ]
        assert told == getattr(columns, name)
    assert all(step.p and step.q and step.p_acc for steps in columns.trace for step in steps)
    assert timed_run(system, translator, batches, 2, trace=True).by_sentence.trace == []
    assert timed_run(system, translator, batches, 1).by_sentence.trace == []
    drafter, alone = load(pair, "drafter", 2)
    assert timed_run(drafter, alone, batches, 1, trace=True).by_sentence.trace == []


def test_a_round_of_sampling_is_drawn_by_its_seed(pair: Settings) -> None:
    """What is traced is what was timed; all rounds have outputs."""
    pair = replace(pair, rule=SamplingRule())
    (system,) = (s for s in list_systems(pair, Choice(("constant",), (2,)), 4) if s.policy != "AR")
    translator = load_translator(replace(system.settings, batch=2))
    batches = plan_batches(translator.codec, LINES, 2)
    runs = [timed_run(system, translator, batches, n, trace=True) for n in (3, 4, 3)]
    outputs = [run.by_sentence.output for run in runs]
    assert outputs[0] == outputs[2] != outputs[1]
    assert all(run.sampled and run.temperature == 1 for run in runs)
    for run in runs:
        accepted = [sum(s.accepted for s in steps) for steps in run.by_sentence.trace]
        assert accepted == run.by_sentence.accepted_tokens
