"""Medians over rounds, ratios within rounds, and what is compared with what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from experiments import (
    BASE,
    PEERS,
    make_columns,
    make_group,
    make_groups,
    make_run,
    make_systems,
    make_text,
)

from specdec_plugins.decoding.acceptance import SamplingRule
from specdec_plugins.evaluation import outputs
from specdec_plugins.evaluation.runs import Run
from specdec_plugins.evaluation.summary import Group, Spread, SystemSummary
from specdec_plugins.evaluation.systems import System
from specdec_plugins.files.output import JsonObject, as_read

DRAWN = make_systems(replace(BASE, rule=SamplingRule()))
TEXTS = ["ein Hund läuft durch den Schnee .", "zwei Männer sitzen auf einer Bank ."]


def system_figures(one: SystemSummary, group: Group) -> Any:
    """As they are written."""
    return as_read(outputs.system_figures(one, group))


def group_figures(group: Group) -> Any:
    return as_read(outputs.group_figures(group))


def rounds(system: System | str, *seconds: float, first: int = 1) -> list[Run]:
    """A run a round, of these seconds."""
    return [
        make_run(system, round=number, seconds=value)
        for number, value in enumerate(seconds, start=first)
    ]


def test_ratios_are_taken_within_a_round() -> None:
    """The machine was 10 times as fast in round 2: the ratio of medians would be 2.5."""
    group = make_group([*rounds("AR", 8, 0.8, 10), *rounds("constant k 3", 4, 0.4, 4)])
    ar, constant = group.systems
    assert constant.times_as_fast_as(ar) == Spread(2.0, 6.5 / 3, 2.0, 2.5, 3)
    assert group.over_baseline(constant) == constant.times_as_fast_as(ar)
    assert constant.spread("seconds") == Spread(4, 8.4 / 3, 0.4, 4, 3)


def test_rounds_that_only_one_has_do_not_count() -> None:
    group = make_group([*rounds("AR", 8, 8), *rounds("constant k 3", 4, 1, first=2)])
    assert group.over_baseline(group.systems[1]) == Spread(2.0, 2.0, 2.0, 2.0, 1)
    group = make_group([*rounds("AR", 8), *rounds("constant k 3", 4, first=2)])
    assert group.over_baseline(group.systems[1]) is None
    alone = make_group(rounds("constant k 3", 4))
    assert alone.over_baseline(alone.systems[0]) is None


def test_a_repeated_run_replaces_the_one_before() -> None:
    group = make_group([make_run(seconds=1.0), make_run(seconds=3.0)])
    assert group.systems[0].spread("seconds") == Spread(3.0, 3.0, 3.0, 3.0, 1)


def test_texts_batch_sizes_and_devices_are_kept_apart() -> None:
    """Smaller batches first, texts and systems in their order."""
    runs = [make_run("oracle k 3", text="b"), make_run("AR", text="b"), make_run("AR", text="a")]
    runs += [make_run("AR", batch=8, text="a"), make_run("AR", device="cuda (H)", text="a")]
    groups = make_groups(runs, None, [make_text("b"), make_text("a")])
    labels = ["cpu-batch1-b", "cpu-batch1-a", "cpu-batch8-a", "cuda-H-batch1-a"]
    assert [group.label for group in groups] == labels
    assert [one.system.name for one in groups[0].systems] == ["AR", "oracle k 3"]
    assert groups[0].conditions == "b: cpu, eager, float32, 1 thread, batch 1, strict"
    assert groups[3].conditions == "a: cuda (H), eager, float32, batch 1"
    assert make_group([make_run("AR")]).label == "cpu-batch1"


def test_of_sampled_output_there_are_means_over_seeds() -> None:
    """And a token's time is compared, since sentences differ in length; outputs are not."""
    output = make_columns(1, 1, output=["a", "b"])
    runs = [
        make_run(DRAWN[name], round=seed, seconds=seconds, committed_tokens=tokens,
                 acceptance_length=length, by_sentence=output)
        for name, tokens in (("AR", 8), ("constant k 3", 16))
        for seed, length, seconds in ((11, 2.0, 8.0), (12, 2.5, 16.0), (13, 6.0, 8.0))
    ]  # fmt: skip
    group = make_group(runs, list(DRAWN.values()))
    figures = system_figures(group.systems[1], group)
    assert group.conditions.endswith("batch 1, sampling at temperature 1")
    assert figures["acceptance_length"] == 3.5
    assert figures["over_rounds"]["acceptance_length"]["high"] == 6.0
    assert figures["milliseconds_per_token"]["mean"] == 2000 / 3
    assert figures["speed_over_baseline"]["median"] == 2
    assert figures["seeds"] == [11, 12, 13]
    assert figures["lines_unlike_AR"] is None


def figures_of(runs: list[Run], *given: object) -> dict[str, JsonObject]:
    """By label."""
    group = make_group(runs, *given, baseline="CTranslate2 float32")
    return {one.system.label: system_figures(one, group) for one in group.systems}


def test_figures_name_what_they_were_measured_under() -> None:
    runs = [*rounds("AR", 4), *rounds("oracle k 3", 2)]
    group = make_group(runs)
    figures = system_figures(group.systems[1], group)
    told = {"device": "cpu", "engine": "eager", "precision": "float32", "threads": 1, "batch": 1}
    told |= {"k": 3, "beta": 1, "tau": 0.0, "temperature": 1.0, "rule": "strict"}
    told |= {"controller": "oracle", "real_decoder": False, "memory_mib": 5.0}
    assert {**figures, **told} == figures
    assert figures["speed_over_baseline"]["median"] == 2
    assert figures["control_share"] == 0.125
    baseline = system_figures(group.systems[0], group)
    assert (baseline["controller"], baseline["k"], baseline["real_decoder"]) == (None, None, True)
    nothing = figures_of([make_run(PEERS[0], memory=None)], PEERS)[PEERS[0].label]
    for name in ("memory_mib", "acceptance_length", "over_rounds", "tokens_per_second", "bleu"):
        assert not nothing[name] or not any(nothing[name].values())


def test_a_baseline_has_as_many_threads() -> None:
    runs = [make_run(one, seconds=1 + i) for i, one in enumerate(PEERS)]
    found = figures_of(runs, PEERS)
    over = {name: one["speed_over_baseline"]["median"] for name, one in found.items()}
    assert over["fairseq beam 1, 1 thread"] == 2
    assert over["CTranslate2 float32, 1 thread"] == 1
    assert over["fairseq beam 1, 2 threads"] == pytest.approx(9 / 8)


def test_bleu_and_differences_are_those_of_the_first_output() -> None:
    other = [TEXTS[0], "zwei Frauen stehen auf einer Bank ."]
    fairseq, reference, int8, ar, ar16, strict, strict16 = PEERS[:7]
    said = dict.fromkeys((reference.label, int8.label, ar.label), TEXTS)
    runs = [
        make_run(s, by_sentence=make_columns(1, 1, output=said.get(s.label, other)))
        for s in PEERS[:7]
    ]
    runs += [make_run(s, round=2) for s in (fairseq, strict)]
    found = figures_of(runs, PEERS, [make_text("", TEXTS)])
    counts = {
        name: (one["lines_unlike_AR"], one["lines_unlike_CTranslate2_float32"])
        for name, one in found.items()
    }
    assert counts == {
        fairseq.label: (1, 1),
        reference.label: (None, 0),
        int8.label: (None, 0),
        ar.label: (0, 0),
        ar16.label: (0, 1),
        strict.label: (1, 1),
        strict16.label: (0, 1),
    }
    for kind in ("bleu", "tokenised_bleu"):
        assert found[ar.label][kind]["median"] == pytest.approx(100)
        assert found[strict.label][kind]["median"] < 90
        assert found[strict.label][kind]["rounds"] == 1
