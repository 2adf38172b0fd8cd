"""SpecDec++'s names, and times from the same rounds."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from sweeps import SAMPLED, make_columns, make_run

from specdec_plugins.decoding.step_result import StepTrace
from specdec_plugins.evaluation.records import file_name, sentence_records
from specdec_plugins.evaluation.summary import Group, summarize

SPECDEC_PP = {
    "id",
    "spec_time",
    "target_time",
    "draft_time",
    "num_mismatched_tokens",
    "num_LM_call",
    "generated_length",
    "generated_length_target",
    "generated_length_draft",
}


def make_group(*names: str, rounds: int = 3) -> Group:
    """Sentence i of system n takes ``(n + 1) * (i + 1) * round`` seconds."""
    runs = [
        make_run(
            name,
            round=number,
            by_sentence=make_columns(
                *((n + 1) * (i + 1) * number for i in range(2)),
                line=[2, 5],
                committed_tokens=[4 + n, 5 + n],
                output=["a", "b"] if number == 1 else [],
            ),
        )
        for n, name in enumerate(names)
        for number in range(1, rounds + 1)
    ]
    (group,) = summarize(runs, list(names))
    return group


def records(group: Group, index: int) -> list[dict[str, Any]]:
    return list(sentence_records(group.systems[index], group))


def test_a_speculative_system() -> None:
    group = make_group("AR", "drafter", "constant k 3")
    first, second = records(group, 2)
    assert set(first) >= SPECDEC_PP
    assert [first["id"], second["id"]] == [1, 4]
    assert [second[name] for name in ("target_time", "draft_time", "spec_time")] == [4, 8, 12]
    assert first["num_mismatched_tokens"] == 5 - 2
    assert first["num_LM_call"] == first["steps"] == 2
    lengths = ("generated_length_target", "generated_length_draft", "generated_length")
    assert [first[name] for name in lengths] == [4, 5, 6]
    assert first["acceptance_length"] == pytest.approx(6 / 2)
    assert [first["output"], second["output"]] == ["a", "b"]
    for name in (
        "device",
        "engine",
        "precision",
        "threads",
        "batch",
        "k",
        "beta",
        "tau",
        "controller",
    ):
        assert name in first


def test_the_target_is_timed_in_the_same_rounds() -> None:
    """Of AR there is a third round, which the other one never had."""
    runs = [run for system in make_group("AR", "constant k 3").systems for run in system.runs]
    (group,) = summarize(runs[:-1], ["AR", "constant k 3"])
    first, _ = records(group, 1)
    assert first["rounds"] == 2
    assert (first["spec_time"], first["target_time"]) == (3, 1.5)


def test_the_baselines_do_not_speculate() -> None:
    group = make_group("AR", "drafter")
    for index in (0, 1):
        first, _ = records(group, index)
        assert first["spec_time"] is first["num_LM_call"] is first["num_mismatched_tokens"] is None
        assert first["seconds"] == 2 * (index + 1)
        assert first["controller"] is None


def test_what_was_not_measured_is_null() -> None:
    first, _ = records(make_group("constant k 3"), 0)
    assert first["target_time"] is first["generated_length_target"] is first["draft_time"] is None


def test_of_sampled_output_there_is_a_record_for_each_seed() -> None:
    """With AR's time by the same seed; and what every drafted token was worth, if recorded."""
    step = StepTrace(["a"], 1, 1, "b", 0.5, p=[0.5], q=[1.0], p_acc=[0.5])
    runs = [
        make_run(
            name,
            round=seed,
            by_sentence=make_columns(
                seed * (n + 1), seed, output=["x", str(seed)], trace=[[step], []]
            ),
            **SAMPLED,
        )
        for n, name in enumerate(("AR", "constant k 3"))
        for seed in (4, 9)
    ]
    (group,) = summarize(runs, [])
    found = records(group, 1)
    assert [(r["seed"], r["id"], r["output"]) for r in found] == [
        *((4, 0, "x"), (4, 1, "4"), (9, 0, "x"), (9, 1, "9")),
    ]
    assert [(r["spec_time"], r["target_time"]) for r in found[::2]] == [(8, 4), (18, 9)]
    assert found[0]["trace"] == [asdict(step)]
    assert (found[0]["sampling"], found[0]["temperature"], found[0]["rounds"]) == (True, 0.7, 1)
    (plain, _) = records(make_group("AR"), 0)
    assert plain["seed"] is plain["trace"] is None


def test_file_names() -> None:
    group = make_group("acceptance-head 0.7 k 12")
    assert file_name(group.systems[0], group) == "acceptance-head-0.7-k-12.cpu-batch1.jsonl"
