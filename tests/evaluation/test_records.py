"""Records of sentences under SpecDec++'s names, and medians."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from helpers.runs.experiments import make_experiment, make_run

from specdec_plugins.evaluation.experiment import Run
from specdec_plugins.evaluation.records import write_records
from specdec_plugins.evaluation.table import results
from specdec_plugins.evaluation.worker import SentenceFigures

SPECDEC_PP = {
    *("id", "spec_time", "target_time", "draft_time", "num_mismatched_tokens", "num_LM_call"),
    *("generated_length", "generated_length_target", "generated_length_draft"),
}
NAMES = ("AR", "drafter", "tree", "fairseq@beam=1")


def make_runs(*names: str, rounds: int = 3) -> list[Run]:
    """Sentence i of system n takes ``(n + 1) * (i + 1) * round`` seconds."""
    runs = []
    for n, name in enumerate(names):
        counts = (4, 7) if name.startswith("tree") else (None, None)
        for number in range(1, rounds + 1):
            seconds = [(n + 1) * (i + 1) * number for i in range(2)]
            figures = [SentenceFigures(s, 5 + n, *counts) for s in seconds]
            runs.append(make_run(name, round=number, seconds=sum(seconds), sentences=figures))
    return runs


def written(folder: Path, runs: list[Run], *names: str) -> tuple[list[Any], dict[Any, Any]]:
    """The medians, and the records by system and ``id``."""
    write_records(results(make_experiment(*names, rounds=3), runs), folder)
    records = map(json.loads, (folder / "sentences.jsonl").read_text().splitlines())
    medians = json.loads((folder / "medians.json").read_text())
    return medians, {(record["system"], record["id"]): record for record in records}


def test_records_have_the_keys_and_units_of_specdec_pp(tmp_path: Path) -> None:
    """Times are medians of all rounds. The sentences are the lines 1 and 3 of the text."""
    _, records = written(tmp_path, make_runs(*NAMES), *NAMES)
    assert set(records) == {(name, number) for name in NAMES for number in (0, 2)}
    record = records["tree", 2]
    assert set(record) >= SPECDEC_PP
    times = [record[name] for name in ("target_time", "draft_time", "spec_time")]
    assert times == [4, 8, 12]
    assert (record["num_LM_call"], record["num_mismatched_tokens"]) == (4, 7)
    lengths = ("generated_length_target", "generated_length_draft", "generated_length")
    assert [record[name] for name in lengths] == [5, 6, 7]
    conditions = ("system", "text", "batch", "threads")
    assert [record[name] for name in conditions] == ["tree", "in.en", 1, 1]
    for name in ("AR", "drafter", "fairseq@beam=1"):
        record = records[name, 0]
        assert record["spec_time"] is record["num_LM_call"] is record["num_mismatched_tokens"]
        assert (record["num_LM_call"], record["target_time"]) == (None, 2)


def test_a_figure_of_another_arithmetic_or_of_nothing_is_null(tmp_path: Path) -> None:
    """int8 drafts leave the verifier's arithmetic, and so AR's, as it was."""
    runs = make_runs("AR", "tree", "tree@float64", rounds=1)
    runs[1:] = [
        make_run(run.system, precision=precision, sentences=run.sentences)
        for run, precision in zip(runs[1:], ("float32, int8 drafts", "float64"))
    ]
    _, records = written(tmp_path, runs, "AR", "tree", "tree@float64")
    assert (records["tree", 0]["target_time"], records["tree@float64", 0]["target_time"]) == (
        1,
        None,
    )
    assert records["tree", 0]["draft_time"] is records["tree", 0]["generated_length_draft"] is None


def test_drawn_output_is_that_of_the_first_seed(tmp_path: Path) -> None:
    name = "tree@sampling=true"
    _, records = written(tmp_path, make_runs("tree", name)[3:], name)
    assert records[name, 0]["spec_time"] == 2


def test_medians(tmp_path: Path) -> None:
    medians, _ = written(tmp_path, make_runs("AR", "tree"), "AR", "tree")
    greedy, tree = medians
    assert (greedy["milliseconds"], tree["milliseconds"]) == (3000, 6000)
    assert (tree["acceptance_length"], tree["acceptance_rate"], tree["rounds"]) == (2, 0.4, 3)
    assert (tree["system"], tree["engine"], tree["precision"]) == ("tree", "eager", "float32")
