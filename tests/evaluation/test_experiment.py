"""Runs that are still to be made, their order and their file; the gap of two outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from helpers.runs.experiments import make_experiment, make_run, make_text

from specdec_plugins.evaluation import experiment
from specdec_plugins.evaluation.experiment import (
    Conditions,
    Experiment,
    Run,
    read_runs,
    timed_run,
    whole_rounds,
)
from specdec_plugins.evaluation.texts import Sentences, gap
from specdec_plugins.evaluation.worker import Decoded, Sentence, SentenceFigures
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.lines import Line
from specdec_plugins.inference import Settings, load_translator

MODEL = Path(__file__).resolve().parents[2] / "checkpoints" / "multi30k.en-de"
NAMES = ("AR", "tree", "constant")


def order(experiment: Experiment, runs: list[Run]) -> list[tuple[int, int, str]]:
    return [
        (where.batch, number, system)
        for where, turns in experiment.pending(runs)
        for number, system in turns
    ]


def test_systems_take_turns() -> None:
    """A round is over before the next begins, and each has an order of its own."""
    experiment = make_experiment(*NAMES, batches=(1, 8), rounds=9)
    found = order(experiment, [])
    assert sorted(found) == sorted(
        (b, n, name) for b in (1, 8) for n in range(1, 10) for name in NAMES
    )
    assert [item[:2] for item in found] == sorted(item[:2] for item in found)
    orders = {tuple(name for *_, name in found[i : i + 3]) for i in range(0, 27, 3)}
    assert len(orders) > 2
    assert order(experiment, []) == found


def test_what_is_there_is_left_out() -> None:
    experiment = make_experiment(*NAMES, rounds=2, texts=[make_text("a"), make_text("b")])
    found = order(experiment, [])
    done = [make_run(name, round=n, text="a") for _, n, name in found[:4]]
    assert order(experiment, done) == found[4:]
    others = [make_run(name, text="a", batch=2) for name in NAMES]
    others += [make_run(name, text="a", threads=2) for name in NAMES]
    assert order(experiment, others) == found


def test_outputs_and_figures_are_in_the_order_of_the_text() -> None:
    """Batches have the longest sentences first."""
    sentences = [Sentence(Line(n, "a" * n), ["a"] * n, 9) for n in (1, 2, 3)]
    text = Sentences("in.en", sentences, None, codec=None, positions=99)  # type: ignore[arg-type]

    class Worker:
        name = "tree"

        def decode(self, batches: int, seed: int) -> Decoded:
            lengths = [len(item.tokens) for batch in text.batches(2) for item in batch]
            assert lengths == [3, 2, 1]
            figures = [SentenceFigures(1.0, length) for length in lengths]
            known = {"engine": "eager", "precision": "float32"}
            return Decoded(3.0, [str(length) for length in lengths], known, figures)

    worker: Any = Worker()
    run = timed_run(worker, Conditions(text, 2, 1), 1)
    assert run.outputs == ["1", "2", "3"]
    assert [figures.length for figures in run.sentences] == [1, 2, 3]
    assert msgspec.json.decode(msgspec.json.encode(run), type=Run) == run


def test_a_round_that_was_interrupted_is_made_anew() -> None:
    """Its systems would have had the machine at different times."""
    turns = [("AR", 1), ("tree", 1), ("tree", 2), ("AR", 2), ("AR", 3)]
    runs = [make_run(name, round=number) for name, number in turns]
    assert whole_rounds(runs, 2) == runs[:4]
    assert whole_rounds(runs[1:], 2) == []


def test_a_system_that_cannot_be_loaded_leaves_the_folder_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise InferenceError("it cannot be loaded")

    monkeypatch.setattr(Experiment, "describe", lambda made: {"systems": [*made.systems]})
    monkeypatch.setattr(experiment, "_take_turns", fail)
    for names in (("AR", "tree"), ("AR",)):
        with pytest.raises(InferenceError, match="it cannot be loaded"):
            list(experiment.measure(make_experiment(*names), tmp_path, print))


def test_ctranslate2_has_its_own_limits() -> None:
    """Not those of the whole command."""
    system = "ctranslate2@max_len_b=3"
    made = make_experiment(system, texts=[make_text("a")])
    job = made.job(system, Conditions(made.texts[0], 1, 1))
    assert {sentence.longest for batch in job.batches for sentence in batch} == {3}


@pytest.mark.parametrize("line", [b"", b"[]", b"{}", b'{"system": 1}', b"[" * 9999])
def test_a_line_that_is_no_run(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_bytes(msgspec.json.encode(make_run("AR")) + b"\n" + line + b"\n")
    with pytest.raises(InferenceError, match="holds a line that is no run"):
        read_runs(path)


def test_the_gap_is_the_verifiers_at_the_first_difference() -> None:
    line = Line(1, "A dog runs through the snow.")
    given = {"strategy": "AR", "engine": "eager", "precision": "float64", "keep_bpe": True}
    judge: Any = load_translator(Settings.of_model(MODEL, **given))
    (translation,) = judge.translate([line])
    own = translation.text.split()
    other = [*own[:2], own[0], *own[3:]]
    found = gap(judge, line, own, other)
    assert found > 0
    assert gap(judge, line, other, own) == found
    # What comes after is not looked at; and where one ends, the other goes on.
    assert gap(judge, line, own, [*other[:3], "Hund"]) == found
    assert gap(judge, line, own, own[:3]) > 0
