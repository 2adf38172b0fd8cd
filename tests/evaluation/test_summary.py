"""Medians over rounds, ratios within rounds."""

from __future__ import annotations

import pytest
from sweeps import SAMPLED, make_columns, make_run

from specdec_plugins.evaluation.runs import Run
from specdec_plugins.evaluation.summary import Spread, speed_ratio, summarize, system_figures
from specdec_plugins.evaluation.texts import Text


def rounds(system: str, *speeds: float, first: int = 1) -> list[Run]:
    """A run a round, of these tokens a second."""
    return [
        make_run(system, round=number, tokens_per_second=speed, seconds=8 / speed)
        for number, speed in enumerate(speeds, start=first)
    ]


def test_ratios_are_taken_within_a_round() -> None:
    """The machine was 10 times as fast in round 2: the ratio of medians would be 2.5."""
    (group,) = summarize([*rounds("AR", 8, 80, 10), *rounds("constant k 3", 16, 160, 25)], [])
    ar, constant = group.systems
    ratio = speed_ratio(constant, ar)
    assert ratio == Spread(2.0, 6.5 / 3, 2.0, 2.5, 3)
    assert constant.tokens_per_second == Spread(25, 67, 16, 160, 3)
    assert constant.tokens_per_second.median / ar.tokens_per_second.median == 2.5


def test_rounds_that_only_one_has_do_not_count() -> None:
    (group,) = summarize([*rounds("AR", 8, 8), *rounds("constant k 3", 16, 99, first=2)], [])
    assert speed_ratio(group.systems[1], group.systems[0]) == Spread(2.0, 2.0, 2.0, 2.0, 1)
    (group,) = summarize([*rounds("AR", 8), *rounds("constant k 3", 16, first=2)], [])
    assert speed_ratio(group.systems[1], group.systems[0]) is None


def test_batch_sizes_and_devices_are_kept_apart() -> None:
    runs = [
        make_run("AR", batch=8),
        make_run("AR", device="cuda (H)", rule="relaxed (beta 3, tau 1.0)"),
        make_run("AR"),
        make_run("oracle k 3"),
    ]
    groups = summarize(runs, [])
    assert [group.label for group in groups] == ["cpu-batch1", "cpu-batch8", "cuda-H-batch1"]
    assert [len(group.systems) for group in groups] == [2, 1, 1]
    assert groups[0].conditions == "cpu, eager, float32, 1 thread, batch 1, strict"
    assert groups[2].conditions == "cuda (H), eager, float32, batch 1, relaxed (beta 3, tau 1.0)"


def test_texts_are_kept_apart_in_their_order() -> None:
    runs = [make_run("AR", text=name) for name in ("a", "b")]
    texts = [Text(name, []) for name in ("b", "a")]
    groups = summarize(runs, [], texts)
    assert [group.label for group in groups] == ["cpu-batch1-b", "cpu-batch1-a"]
    assert groups[0].conditions == "b: cpu, eager, float32, 1 thread, batch 1, strict"


def test_bleu_is_that_of_the_lines_that_were_decoded() -> None:
    said = ["der Hund schläft auf dem Sofa", "ein Mann kocht in der Küche"]
    text = Text("", [], [said[0], "", said[1]])
    columns = make_columns(1, 1, line=[1, 3], output=said)
    runs = [make_run("AR", by_sentence=columns), make_run("AR", round=2)]
    (group,) = summarize(runs, [], [text])
    score = group.systems[0].bleu
    assert score is not None
    assert (score.rounds, score.mean) == (1, pytest.approx(100))
    (group,) = summarize(runs, [], [Text("", [])])
    assert group.systems[0].bleu is None


def test_memory_is_the_most_of_all_rounds() -> None:
    sizes = (3, None, 7)
    runs = [make_run("AR", round=n, memory=size) for n, size in enumerate(sizes)]
    (group,) = summarize(runs, [])
    assert group.systems[0].memory == 7
    (group,) = summarize([make_run("AR", memory=None)], [])
    assert group.systems[0].memory is None
    assert system_figures(group.systems[0], None)["memory_mib"] is None


def test_the_order_is_that_of_the_sweep() -> None:
    names = ["AR", "constant k 3", "oracle k 3"]
    (group,) = summarize([make_run(name) for name in reversed(names)], names)
    assert [system.name for system in group.systems] == names


def test_a_repeated_run_replaces_the_one_before() -> None:
    runs = [make_run("AR", seconds=1.0), make_run("AR", seconds=3.0)]
    (group,) = summarize(runs, [])
    assert group.systems[0].seconds == Spread(3.0, 3.0, 3.0, 3.0, 1)


def test_rates_are_medians() -> None:
    rates = (0.3, 0.9, 0.4)
    runs = [make_run(round=i, verification_rate=rate) for i, rate in enumerate(rates, start=1)]
    (group,) = summarize(runs, [])
    assert group.systems[0].verification_rate == 0.4
    assert Spread.of([]) is None


def test_of_sampled_output_there_are_means_over_seeds() -> None:
    """And a token's time, since sentences differ in length; outputs are not compared."""
    output = make_columns(1, 1, output=["a", "b"])
    runs = [
        make_run(
            name,
            round=seed,
            acceptance_length=length,
            seconds=seconds,
            by_sentence=output,
            **SAMPLED,
        )
        for name in ("AR", "constant k 3")
        for seed, length, seconds in ((11, 2.0, 8.0), (12, 2.5, 16.0), (13, 6.0, 8.0))
    ]
    (group,) = summarize(runs, [])
    system = group.systems[1]
    assert group.conditions.endswith("batch 1, sampling at temperature 0.7")
    assert system.acceptance_length == 3.5
    assert system.spread("acceptance_length") == Spread(2.5, 3.5, 2.0, 6.0, 3)
    assert system.milliseconds_per_token == Spread(1000, 4000 / 3, 1000, 2000, 3)
    assert [one.same_as_ar for one in group.systems] == [None, None]
    figures = system_figures(system, group.ar)
    assert figures["seeds"] == [11, 12, 13]
    assert figures["over_rounds"]["acceptance_length"]["high"] == 6.0


def test_the_controllers_share_is_that_of_each_round() -> None:
    times = ((1.0, 0.5), (10.0, 2.0), (4.0, 1.0), (0.0, 0.0), (8.0, 2.0))
    runs = [
        make_run(round=i, seconds=total, control_seconds=part)
        for i, (total, part) in enumerate(times, start=1)
    ]
    (group,) = summarize(runs, [])
    assert group.systems[0].control_share == 0.25
    assert system_figures(group.systems[0], None)["control_share"] == 0.25


def test_outputs_are_compared_with_those_of_ar() -> None:
    runs = [
        make_run("AR", by_sentence=make_columns(1, 1, output=["a", "b"])),
        make_run("constant k 3", by_sentence=make_columns(1, 1, output=["a", "c"])),
        make_run("oracle k 3"),
    ]
    (group,) = summarize(runs, [])
    assert [system.same_as_ar for system in group.systems] == [2, 1, None]


def test_figures_name_what_they_were_measured_under() -> None:
    runs = [*rounds("AR", 8), *rounds("oracle k 3", 16)]
    (group,) = summarize(runs, [])
    figures = system_figures(group.systems[1], group.ar)
    for name in (
        "device",
        "engine",
        "precision",
        "threads",
        "batch",
        "k",
        "beta",
        "tau",
        "temperature",
        "controller",
    ):
        assert name in figures
    assert figures["seeds"] is None
    assert figures["controller"] == "oracle"
    assert figures["real_decoder"] is False
    assert figures["speed_over_AR"]["median"] == pytest.approx(2)
    baseline = system_figures(group.systems[0], group.ar)
    assert (baseline["controller"], baseline["k"], baseline["real_decoder"]) == (None, None, True)
