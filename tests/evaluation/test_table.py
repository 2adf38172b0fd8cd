"""The Markdown of a group."""

from __future__ import annotations

import pytest
from sweeps import SAMPLED, make_run

from specdec_plugins.evaluation.comparisons import compare
from specdec_plugins.evaluation.summary import Group, summarize
from specdec_plugins.evaluation.table import SPEED, format_group, format_texts
from specdec_plugins.evaluation.texts import Text

NAMES = [
    "AR",
    "drafter",
    "constant k 1",
    "constant k 3",
    "acceptance-head 0.5 k 3",
    "acceptance-head 0.9 k 3",
    "cost-aware k 3",
    "oracle k 3",
]
RATES = {
    "constant k 1": (0.6, 0.2),
    "constant k 3": (0.4, 0.4),
    "acceptance-head 0.5 k 3": (0.5, 0.24),
    "acceptance-head 0.9 k 3": (0.3, 0.5),
}


@pytest.fixture
def group() -> Group:
    runs = []
    for name in NAMES:
        verification, discard = RATES.get(name, (0.5, 0.1))
        rates = {"verification_rate": verification, "verified_discard_rate": discard}
        runs += [make_run(name, round=number, **rates) for number in (1, 2)]
    (group,) = summarize(runs, NAMES)
    return group


def test_every_system_has_a_row_of_every_column(group: Group) -> None:
    text = format_group(group, compare(group))
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + len(NAMES)
    assert {row.count("|") for row in rows} == {13}
    assert (
        "| constant k 3 | 3 | 2.00 | 0.400 | 0.400 | 0.400 | 1.000 | 8 | 1.00 (1.00 to 1.00) "
        "| 25.0 | 5 |  |\n"
    ) in text
    assert "| AR |  | 2.00 |  |" in text


def test_conditions_and_what_is_no_decoder_are_said(group: Group) -> None:
    text = format_group(group, compare(group))
    assert text.startswith("### cpu, eager, float32, 1 thread, batch 1, strict\n")
    assert "alternating rounds (2)" in text
    assert "not a real decoder" in text
    assert "bonus token included" in text
    assert "| *oracle k 3* (not real) |" in text
    # The drafter alone has no rates: it is not verified.
    assert "| *drafter alone* | 3 |  |  |  |  |  | 8 |" in text


def test_comparisons_in_words(group: Group) -> None:
    text = format_group(group, compare(group))
    assert (
        "- acceptance-head 0.5 k 3: at verification rate 0.500 it has 0.240 verified slots "
        "discarded per committed token, constant k 0.300, 20 % fewer.\n"
    ) in text
    assert (
        "- acceptance-head 0.9 k 3: at verification rate 0.300, outside the range of constant k "
        "(0.400 to 0.600): no comparison.\n"
    ) in text
    assert "cost-aware k 3 over oracle k 3, 1.00 (1.00 to 1.00) x tokens/s" in text


def test_a_round_that_was_broken_off_is_said() -> None:
    (group,) = summarize([make_run("AR"), make_run("AR", round=2), make_run("oracle k 3")], [])
    assert "alternating rounds (1 to 2)" in format_group(group, compare(group))


def test_sampled_output_is_compared_by_the_token() -> None:
    runs = [
        make_run(name, round=seed, acceptance_length=1.5 + seed, seconds=seconds, **SAMPLED)
        for name in ("AR", "constant k 3", "acceptance-head 0.5 k 3")
        for seed, seconds in ((1, 8.0), (2, 16.0))
    ]
    (group,) = summarize(runs, [])
    text = format_group(group, compare(group))
    assert "batch 1, sampling at temperature 0.7\n" in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert {row.count("|") for row in rows} == {12}
    assert "as AR" not in rows[0]
    assert "| constant k 3 | 3 | 3.00 (2.50 to 3.50) | 0.400 | 0.500 | 0.750 | 1.000 |" in text
    assert "| 1500.00 (1000.00 to 2000.00) | 1.00 (1.00 to 1.00) | 2.3 |" in text
    assert "Means over seeds (2, a round each" in text
    assert "the time of a token is compared" in text
    assert "same output" not in text


def test_one_table_across_texts() -> None:
    """A row for each system; what it has not run on is left empty."""
    runs = [
        make_run(name, text=text, acceptance_length=length, tokens_per_second=speed)
        for text, length in (("near", 4.0), ("far", 2.5))
        for name, speed in (("AR", 8.0), ("constant k 3", 4 * length))
        if (name, text) != ("AR", "far")
    ]
    groups = summarize(runs, NAMES, [Text("near", []), Text("far", [])])
    lines = format_texts(groups).splitlines()
    assert lines[0] == "### All texts: cpu, eager, float32, 1 thread, batch 1, strict"
    head = [name.strip() for name in lines[2].split("|")[1:-1]]
    shown = ("acceptance length", "verification rate", "discard rate, verified slots")
    heads = [f"{text}: {name}" for text in ("near", "far") for name in (*shown, SPEED)]
    assert head == ["system", "k", *heads]
    assert lines[4] == "| AR |  | 4.00 | 0.500 | 0.750 | 1 |  |  |  |  |"
    near = "4.00 | 0.500 | 0.750 | 2.00 (2.00 to 2.00)"
    assert lines[5] == f"| constant k 3 | 3 | {near} | 2.50 | 0.500 | 0.750 |  |"
