"""SpecDec++'s names, and times from the same rounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from experiments import BASE, PEERS, make_columns, make_group, make_run, make_systems

from specdec_plugins.decoding.acceptance import SamplingRule
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.evaluation.records import file_name, sentence_records
from specdec_plugins.evaluation.runs import Run, SentenceColumns
from specdec_plugins.evaluation.summary import Group

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


def make_runs(*names: str, rounds: int = 3) -> list[Run]:
    """Sentence i of system n takes ``(n + 1) * (i + 1) * round`` seconds."""
    return [
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


def records(group: Group, index: int) -> list[dict[str, Any]]:
    return list(sentence_records(group.systems[index], group))


def test_a_speculative_system() -> None:
    group = make_group(make_runs("AR", "drafter", "constant k 3"))
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
    group = make_group(make_runs("AR", "constant k 3")[:-1])
    first, _ = records(group, 1)
    assert first["rounds"] == 2
    assert (first["spec_time"], first["target_time"]) == (3, 1.5)


def test_the_baselines_do_not_speculate() -> None:
    group = make_group(make_runs("AR", "drafter"))
    for index in (0, 1):
        first, _ = records(group, index)
        assert first["spec_time"] is first["num_LM_call"] is first["num_mismatched_tokens"] is None
        assert first["seconds"] == 2 * (index + 1)
        assert first["controller"] is None


def test_what_was_not_measured_is_null() -> None:
    first, _ = records(make_group(make_runs("constant k 3")), 0)
    assert first["target_time"] is first["generated_length_target"] is first["draft_time"] is None


def test_of_sampled_output_there_is_a_record_for_each_seed() -> None:
    """With AR's time by the same seed."""
    limits = GenerationLimits(temperature=0.7)
    drawn = make_systems(replace(BASE, rule=SamplingRule(), limits=limits))
    runs = [
        make_run(
            drawn[name],
            round=seed,
            by_sentence=make_columns(seed * (n + 1), seed, output=["x", str(seed)]),
        )
        for n, name in enumerate(("AR", "constant k 3"))
        for seed in (4, 9)
    ]
    group = make_group(runs, list(drawn.values()))
    found = records(group, 1)
    assert [(r["seed"], r["id"], r["output"]) for r in found] == [
        *((4, 0, "x"), (4, 1, "4"), (9, 0, "x"), (9, 1, "9")),
    ]
    assert [(r["spec_time"], r["target_time"]) for r in found[::2]] == [(8, 4), (18, 9)]
    assert (found[0]["sampling"], found[0]["temperature"], found[0]["rounds"]) == (True, 0.7, 1)
    (plain, _) = records(make_group(make_runs("AR")), 0)
    assert plain["seed"] is None


def test_file_names() -> None:
    group = make_group([make_run("acceptance-head 0.5 k 3")])
    assert file_name(group.systems[0], group) == "acceptance-head-0.5-k-3.cpu-batch1.jsonl"
    group = make_group([make_run(one) for one in PEERS], PEERS)
    assert len({file_name(one, group) for one in group.systems}) == len(PEERS)


def test_what_tells_nothing_of_its_steps() -> None:
    columns = SentenceColumns(line=[1, 2], seconds=[1.0, 2.0], output=["a", "b"])
    group = make_group([make_run(PEERS[0], by_sentence=columns)], PEERS)
    first, _ = records(group, 0)
    assert (first["seconds"], first["output"]) == (1.0, "a")
    assert first["steps"] is first["acceptance_length"] is first["generated_length"] is None
