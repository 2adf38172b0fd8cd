"""A timed run: whose steps are whose, and what is counted."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from drafters import save_pair
from scripted import make_result

from specdec_plugins.decoding.acceptance import RelaxedRule, SamplingRule
from specdec_plugins.decoding.controllers import ControllerOptions
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.evaluation.experiment import Experiment, Round, timed_run
from specdec_plugins.evaluation.runs import Run
from specdec_plugins.evaluation.systems import System
from specdec_plugins.evaluation.texts import NamedText, Sentences
from specdec_plugins.evaluation.timing import RowCounts, TranslatorJob
from specdec_plugins.files.lines import Line
from specdec_plugins.inference import Settings, load_translator

TEXTS = ["w3 w4 w5", "", "w7", "w1 w2 w3 w4 w5 w6 w7", " ", "w9 w8 w7 w6", "w2 w2"]
LINES = [Line(number, text) for number, text in enumerate(TEXTS, start=1)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = save_pair(tmp_path_factory.mktemp("pair"))
    files = {"path": str(folder / "drafter.pt"), "ar_path": str(folder / "verifier.pt")}
    return Settings(data=str(folder), limits=GenerationLimits(1.0, 4), **files)


@pytest.fixture(scope="module")
def text(pair: Settings) -> Sentences:
    return Sentences.of(NamedText("", LINES), load_translator(pair))


def make(pair: Settings, name: str) -> System:
    """A strategy, or a controller."""
    if name in ("AR", "drafter", "fairseq"):
        plain = replace(pair, strategy=name, controller=ControllerOptions())
        return System(name, plain, 1)
    given = {"confidence_threshold": 0.2} if name == "confidence" else {}
    return System(name, replace(pair, controller=ControllerOptions(name, **given)), 1)


def runs(system: System, text: Sentences, batch: int, *numbers: int) -> list[Run]:
    """Rounds of one system, in this process."""
    experiment = Experiment([system], [text], system.settings, {})
    rounds = [Round(batch, text, number, [system]) for number in numbers]
    job = experiment.job(system, rounds[0])
    job.load()
    job.decode(1)
    return [timed_run(system, job, one) for one in rounds]


def test_counts_are_of_the_rows_that_steps_had() -> None:
    """Three rows, of which the second leaves after its first step and the third after two; and of
    the next batch the first, whose place the last one takes."""
    counts, anything = RowCounts(), Mock()
    for steps, drafted, verified in (
        ([([0, 1, 2], [4, 3, 2], [4, 2, 1]), ([0, 2], [10, 20], [5, 7]), ([0], [100], [0])],
         [114, 3, 22], [9, 2, 8]),
        ([([0, 1, 2], [4, 3, 2], [4, 2, 1]), ([2, 1], [10, 20], [5, 7])], [4, 23, 12], [4, 9, 6]),
    ):  # fmt: skip
        counts.begin([0] * 3)
        for rows, *lengths in steps:
            result = replace(make_result([0] * len(rows), lengths[1], lengths[0]), rows=rows)
            counts(anything, anything, result, anything)
        assert (counts.drafted, counts.verified) == (drafted, verified)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", ["AR", "drafter", "constant", "confidence", "oracle"])
def test_a_run_of_every_kind(pair: Settings, text: Sentences, name: str, batch: int) -> None:
    system = make(pair, name)
    translator = load_translator(replace(system.settings, batch=batch))
    expected = [result.text for result in translator.translate(TEXTS)]
    run, again = runs(system, text, batch, 1, 2)
    columns = run.by_sentence
    assert columns.line == [1, 3, 4, 6, 7]
    assert columns.output == [expected[number - 1] for number in columns.line]
    for total in ("steps", "drafted_tokens", "verified_tokens", "accepted_tokens"):
        assert sum(getattr(columns, total)) == getattr(run, total), total
    assert sum(columns.committed_tokens) == run.committed_tokens
    assert run.control_seconds is not None
    assert 0 <= run.control_seconds < run.seconds
    assert run.control_seconds > 0 or name == "drafter"
    assert (run.acceptance_length is None) == (name == "drafter")
    assert run.verified_discard_rate is None or run.verified_discard_rate <= run.discard_rate
    assert (run.batch, run.round, run.sentences, run.precision) == (batch, 1, 5, "float32")
    assert run.block_size == (None if name == "AR" else 4)
    # A batch's time is that of each of its sentences, and there are two batches of 3 and 2.
    batches = text.batches(batch)
    distinct = {columns.seconds[i] for i in batches[0]}
    assert len(distinct) == 1
    total = sum(columns.seconds[one[0]] for one in batches)
    assert total == pytest.approx(run.seconds, abs=1e-4)
    assert again.by_sentence.output == again.by_sentence.accepted_by_step == []


def test_stock_search_tells_nothing_of_its_steps(pair: Settings, text: Sentences) -> None:
    (run,) = runs(make(replace(pair, beam=1), "fairseq"), text, 1, 1)
    (ours,) = runs(make(pair, "AR"), text, 1, 1)
    assert run.by_sentence.output == ours.by_sentence.output
    assert run.by_sentence.steps == []
    assert run.steps is run.acceptance_length is run.block_size is None


def test_memory_of_a_gpu_is_that_of_the_system(
    pair: Settings, text: Sentences, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What others have there before it does not count."""
    allocated = iter([1000, 1300, 2000, 2010, 2500, 2500])
    monkeypatch.setattr(TranslatorJob, "_on_gpu", True)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: next(allocated))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 2550)
    (run,) = runs(make(pair, "AR"), text, 1, 1)
    assert run.memory == 300 + 10 + 50


def test_a_sentence_counts_the_same_alone_and_in_a_batch(pair: Settings, text: Sentences) -> None:
    """Verify lengths differ from row to row, so that rows that were mixed up would show."""
    system = make(replace(pair, rule=RelaxedRule(8, 50.0)), "confidence")
    alone, together = (runs(system, text, size, 1)[0].by_sentence for size in (1, 3))
    for name in ("steps", "drafted_tokens", "verified_tokens", "accepted_tokens", "output"):
        assert getattr(alone, name) == getattr(together, name), name
    assert len(set(alone.verified_tokens)) > 2
    assert len(set(alone.accepted_tokens)) > 2


def test_batches_are_of_like_lengths(text: Sentences) -> None:
    numbers = [[text.lines[i].number for i in batch] for batch in text.batches(2)]
    assert numbers == [[4, 6], [1, 7], [3]]
    assert [[text.lines[i].number for i in batch] for batch in text.batches(1)] == [
        *([1], [3], [4], [6], [7])
    ]


def test_a_round_of_sampling_is_drawn_by_its_seed(pair: Settings, text: Sentences) -> None:
    """All rounds have outputs."""
    system = make(replace(pair, rule=SamplingRule()), "constant")
    outputs = [run.by_sentence.output for run in runs(system, text, 2, 3, 4, 3)]
    assert outputs[0] == outputs[2] != outputs[1]
