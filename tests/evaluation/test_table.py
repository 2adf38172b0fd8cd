"""The Markdown of figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from experiments import (
    BASE,
    PEERS,
    SYSTEMS,
    make_columns,
    make_groups,
    make_run,
    make_systems,
    make_text,
)

from specdec_plugins.decoding.acceptance import SamplingRule
from specdec_plugins.evaluation.outputs import group_figures
from specdec_plugins.evaluation.runs import Run
from specdec_plugins.evaluation.systems import System
from specdec_plugins.evaluation.table import groups_table, spread, summary_tables, texts_table
from specdec_plugins.evaluation.texts import Sentences
from specdec_plugins.files.output import JsonObject, as_read

NAMES = ["AR", "drafter", "constant k 1", "constant k 3", "acceptance-head 0.5 k 3"]
NAMES += ["acceptance-head 0.9 k 3", "oracle k 3"]
RATES = {
    "constant k 1": (0.6, 0.2),
    "constant k 3": (0.4, 0.4),
    "acceptance-head 0.5 k 3": (0.5, 0.24),
    "acceptance-head 0.9 k 3": (0.3, 0.5),
}


def figures(
    runs: Sequence[Run],
    systems: Sequence[System] = tuple(SYSTEMS.values()),
    texts: Sequence[Sentences] = (make_text(),),
    baseline: str = "AR",
) -> JsonObject:
    """A summary, as far as it is told."""
    return {
        "machine": {},
        "baseline": baseline,
        "bleu_signature": None,
        "left_out": {},
        "groups": [as_read(group_figures(g)) for g in make_groups(runs, systems, texts, baseline)],
    }


def many(rounds: int = 3) -> list[Run]:
    runs = []
    for name in NAMES:
        verification, discard = RATES.get(name, (0.5, 0.1))
        rates = {"verification_rate": verification, "verified_discard_rate": discard}
        own = {} if name == "drafter" else rates
        runs += [make_run(name, round=number, **own) for number in range(1, rounds + 1)]
    return runs


def rows(text: str) -> list[list[str]]:
    """The cells of the tables."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_every_system_has_a_row_of_every_column_that_says_something() -> None:
    text = summary_tables(figures(many()))
    heading = "### cpu, eager, float32, 1 thread, batch 1, strict; 2 sentences"
    assert text.splitlines()[0] == heading
    head, *found = rows(text)
    assert head == [
        *("system", "k", "ms per sentence", "x AR", "acceptance length", "acceptance rate"),
        *("verification rate", "of verified", "discard rate", "controller, % of time"),
        "memory, MiB",
    ]
    assert [row[0] for row in found] == [*NAMES[:-1], "oracle k 3 (not real)"]
    assert found[3] == [
        *("constant k 3", "3", "500.0 (500.0 to 500.0)", "1.00 (1.00 to 1.00)", "2.00", "0.400"),
        *("0.400", "0.40", "1.00", "25.0", "5"),
    ]
    assert "medians over alternating rounds (3), least to most" in text
    assert "bonus token included" in text


def test_what_heads_save() -> None:
    text = summary_tables(figures(many()))
    assert (
        "- acceptance-head 0.5 k 3: at verification rate 0.500 it has 0.240 verified slots "
        "discarded per committed token, constant k 0.300, 20 % fewer.\n"
    ) in text
    assert (
        "- acceptance-head 0.9 k 3: at verification rate 0.300, outside the range of constant k "
        "(0.400 to 0.600): no comparison.\n"
    ) in text


def test_one_round_has_no_range() -> None:
    text = summary_tables(figures(many(rounds=1)))
    assert "| 500.0 | 1.00 |" in text
    assert " to " not in text.partition("Times are")[0].partition("\n- ")[0]
    assert spread({"median": 4.05, "low": 4.05, "high": 4.05, "rounds": 1}) == "4.05"


def test_a_round_that_was_broken_off_is_said() -> None:
    runs = [make_run("AR"), make_run("AR", round=2), make_run("oracle k 3")]
    assert "alternating rounds (1 to 2)" in summary_tables(figures(runs))


def test_sampled_output_is_compared_by_the_token() -> None:
    drawn = make_systems(replace(BASE, rule=SamplingRule()))
    runs = [
        make_run(drawn[name], round=seed, acceptance_length=1.5 + seed, seconds=8.0 * seed)
        for name in ("AR", "constant k 3")
        for seed in (1, 2)
    ]
    text = summary_tables(figures(runs, list(drawn.values())))
    head, _, constant = rows(text)
    found = dict(zip(head, constant, strict=True))
    assert "ms per sentence" not in head
    assert "lines unlike AR" not in head
    assert found["ms per token"] == "1500.00 (1000.00 to 2000.00)"
    assert found["acceptance length"] == "3.00 (2.50 to 3.50)"
    assert found["verification rate"] == "0.500"
    assert "means over 2 seeds" in text
    assert "tokens are timed, not sentences" in text


def test_one_table_across_texts() -> None:
    """A row for each system, then one for each text; what has not run is left empty."""
    translated = make_columns(1, 1, output=["ein Hund schläft auf dem Sofa"] * 2)
    runs = [
        make_run(name, text=text, acceptance_length=length, seconds=seconds, by_sentence=translated)
        for text, length in (("near", 4.0), ("far", 2.5))
        for name, seconds in (("AR", 2.0), ("constant k 3", 1.0))
        if (name, text) != ("AR", "far")
    ]
    texts = [make_text(n, ["ein Hund schläft auf dem Sofa"] * 2) for n in ("near", "far")]
    found = figures(runs, texts=texts)
    assert rows("\n".join(groups_table(found))) == [
        [
            *("system", "acceptance length", "verification rate", "discard rate", "of verified"),
            *("x AR, near", "x AR, far"),
        ],
        ["AR", "4.00", "0.500", "1.00", "0.75", "1.00", ""],
        ["constant k 3", "4.00", "0.500", "1.00", "0.75", "2.00", ""],
    ]
    assert rows("\n".join(texts_table(found))) == [
        ["text", "BLEU of AR", "constant k 3"],
        ["near", "100.0", "4.00"],
        ["far", "", "2.50"],
    ]
    text = summary_tables(found)
    assert text.startswith("### All: cpu, eager, float32, 1 thread, batch 1, strict\n")
    assert text.count("\n### ") == 2


def test_peers_are_told_apart_by_their_threads() -> None:
    runs = [make_run(one, seconds=1.0 + i) for i, one in enumerate(PEERS)]
    given = {**figures(runs, PEERS, baseline="CTranslate2 float32"), "bleu_signature": "signed"}
    given |= {"left_out": {"CTranslate2": "a reason"}, "machine": {"waiting": {}}}
    text = summary_tables(given)
    head, *found = rows(text)
    assert text.startswith("### cpu, batch 1, strict; 2 sentences\n")
    assert head[:4] == ["system", "threads", "ms per sentence", "x CTranslate2 float32"]
    assert found[0][:4] == ["fairseq beam 1", "1", "500.0", "2.00"]
    assert found[3][0] == "AR eager float32"
    assert len(found) == len(PEERS)
    assert "sacreBLEU `signed`" in text
    assert "the most that the system's process had" in text
    assert text.endswith("\nCTranslate2 is left out: a reason.\n")
