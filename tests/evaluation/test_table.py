"""Figures of runs, and the table and plots that they make."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from helpers.runs.experiments import make_experiment, make_run, make_text
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.decoding.controllers.base import CONTROLLERS
from specdec_plugins.evaluation.plots import draw, save_figure
from specdec_plugins.evaluation.table import results, table
from specdec_plugins.evaluation.worker import SentenceFigures
from specdec_plugins.inference.systems import OTHERS


@given(st.data())
def test_identities_of_rates(data: st.DataObject) -> None:
    steps = data.draw(st.integers(1, 50))
    drafted = data.draw(st.integers(0, 500))
    verified = data.draw(st.integers(0, drafted))
    accepted = data.draw(st.integers(0, verified))
    counts = {"steps": steps, "verifier_calls": steps, "committed_tokens": accepted + steps}
    counts |= {"drafted_tokens": drafted, "verified_tokens": verified, "accepted_tokens": accepted}
    found = make_run("tree", counts=counts).figures()
    length, rate = found["acceptance_length"], found["verification_rate"]
    assert length == pytest.approx(1 + accepted / steps)
    assert length * rate == pytest.approx(1)
    unverified = (drafted - verified) / (accepted + steps)
    assert found["discard_rate"] - found["verified_discard_rate"] == pytest.approx(unverified)
    assert found["acceptance_rate"] * verified == pytest.approx(accepted)


def test_what_is_not_counted_has_no_rates() -> None:
    assert make_run("fairseq").figures() == {"milliseconds": 500}
    sentences = [SentenceFigures(seconds=0.5, length=4)] * 2
    counts = {"committed_tokens": 8, "drafted_tokens": 9, "steps": 8}
    alone = make_run("drafter", counts=counts, sentences=sentences).figures()
    assert alone["tokens_per_second"] == 8
    assert not {"acceptance_length", "verified_discard_rate"} & alone.keys()
    del counts["drafted_tokens"]
    greedy = make_run("AR", counts=counts).figures()
    assert greedy["acceptance_length"] == 1
    assert not {"acceptance_rate", "discard_rate"} & greedy.keys()


def rows(text: str) -> list[dict[str, str]]:
    """The rows of all tables."""
    found, heads = [], []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| system"):
            heads = cells
        elif line.startswith("| "):
            found.append(dict(zip(heads, cells, strict=True)))
    return found


def test_ratios_are_taken_within_rounds() -> None:
    """A machine that becomes slower changes neither system's ratio."""
    experiment = make_experiment("AR", "tree", "fairseq@beam=1", "oracle", rounds=3)
    runs = [
        make_run(name, round=number, seconds=seconds * number)
        for number in (1, 2, 3)
        for name, seconds in (("AR", 2.0), ("tree", 1.0), ("fairseq@beam=1", 4.0), ("oracle", 0.5))
    ]
    text = table(experiment, runs, "AR", "specdec-evaluate PAIR")
    assert text.startswith("    specdec-evaluate PAIR\n")
    greedy, tree, beam, oracle = rows(text)
    assert greedy["ms"] == "2000.0 (1000.0 to 3000.0)"
    assert [row["times greedy, no drafts"] for row in (greedy, tree, beam)] == [
        *("1.00 (1.00 to 1.00)", "2.00 (2.00 to 2.00)", "0.50 (0.50 to 0.50)"),
    ]
    assert (tree["acceptance length"], beam["acceptance length"]) == ("2.00", "")
    assert oracle["system"] == "oracle (not real)"
    assert "BLEU" not in tree


def test_lines_unlike_those_of_AR() -> None:  # noqa: N802
    experiment = make_experiment("AR", "AR@float64", "tree", "tree@float64")
    precisions = {"AR": "float32", "tree": "float32, int8 drafts"}
    outputs = {"AR": ["x", "y"], "AR@float64": ["x", "z"], "tree": ["x", "z"]}
    outputs["tree@float64"] = ["x", "z"]
    runs = [
        make_run(
            name,
            precision=precisions.get(name, "float64"),
            outputs=output,
        )
        for name, output in outputs.items()
    ]
    found = rows(table(experiment, runs, "AR", ""))
    assert [row["unlike AR"] for row in found] == ["", "", "1", "0"]


def test_lines_are_compared_with_those_of_the_same_limits() -> None:
    """Whatever drafts."""
    outputs = {"AR@max_len_b=3": "x", "AR": "x y", "constant@drafts=copy": "x y"}
    experiment = make_experiment(*outputs)
    runs = [make_run(name, outputs=[text] * 2) for name, text in outputs.items()]
    runs[-1] = make_run(
        "constant@drafts=copy",
        engine=f"{runs[0].engine}, writer drafts",
        precision=f"{runs[0].precision}, int8 drafts",
        outputs=["x y"] * 2,
    )
    found = rows(table(experiment, runs, "AR", ""))
    assert [row["unlike AR"] for row in found] == ["", "", "0"]


def test_texts_and_batches_have_tables_of_their_own() -> None:
    line = "ein Hund schläft auf dem Sofa"
    texts = [make_text("near", [line] * 2), make_text("far")]
    experiment = make_experiment("AR", texts=texts, batches=(1, 8))
    runs = [
        make_run("AR", text=text, batch=batch, outputs=[line] * 2)
        for text in ("near", "far")
        for batch in (1, 8)
    ]
    text = table(experiment, runs[:3], "AR", "")
    assert text.count("\n### ") == 3
    assert [row.get("BLEU") for row in rows(text)] == ["100.0", "100.0", None]


@pytest.fixture
def matplotlib() -> ModuleType:
    return pytest.importorskip("matplotlib", reason="matplotlib, of the extra [plot], is not here")


SYSTEMS = [name for name in [*OTHERS, *CONTROLLERS] if name not in ("auto", "none")]


def test_no_two_systems_have_one_colour(matplotlib: ModuleType) -> None:
    """Two settings of one controller have."""
    names = [*SYSTEMS, "tree@tree_nodes=9"]
    groups = results(make_experiment(*names), list(map(make_run, names)))
    figures = dict(draw(groups, names[0]))
    bars = [
        matplotlib.colors.to_hex(bar.get_facecolor()) for bar in figures["speed"].axes[0].patches
    ]
    assert len(bars) == len(names)
    assert len(set(bars)) == len(SYSTEMS)
    assert bars[-1] == bars[names.index("tree")]


def test_the_pareto_plot_has_specdec_pps_axes(matplotlib: ModuleType) -> None:
    """Of 12 tokens drafted a head verifies 6, and 4 are accepted: its full point is left of
    constant's, and at the same height; the hollow ones are in one place."""
    counts = make_run("tree").counts
    runs = [make_run("constant", counts={**counts, "verified_tokens": 12})]
    runs += [make_run("acceptance-head", counts={**counts, "verified_tokens": 6})]
    experiment = make_experiment("constant", "acceptance-head")
    (axes,) = dict(draw(results(experiment, runs), "constant"))["pareto"].axes
    assert "discarded per committed token" in axes.get_xlabel()
    assert "verifier calls" in axes.get_ylabel()
    points = {line.get_label(): line.get_xydata().tolist() for line in axes.lines[::2]}
    assert points == {"constant": [[8 / 8, 4 / 8]], "acceptance-head": [[2 / 8, 4 / 8]]}
    assert [line.get_xydata().tolist() for line in axes.lines[1::2]] == 2 * [[[8 / 8, 4 / 8]]]


def test_bars_are_ratios_to_the_baseline(matplotlib: ModuleType) -> None:
    runs = [make_run("AR", seconds=3.0), make_run("tree")]
    groups = results(make_experiment("AR", "tree"), runs)
    (axes,) = dict(draw(groups, "tree"))["speed"].axes
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([1 / 3, 1])
    assert "times as fast as tree" in axes.get_xlabel()


def test_a_system_whose_speed_is_not_known_has_no_bar(matplotlib: ModuleType) -> None:
    """Drawn output is compared by the token, which CTranslate2 does not tell."""
    names = ["AR@sampling=true", "ctranslate2"]
    groups = results(make_experiment(*names), list(map(make_run, names)))
    (axes,) = dict(draw(groups, "ctranslate2"))["speed"].axes
    assert len(axes.patches) == 1


def test_parts_of_a_sentences_time_are_stacked(matplotlib: ModuleType) -> None:
    """Each system's lie end to end; all of one that tells none is one bar."""
    spent = {"encode": 0.25, "draft": 0.5, "control": 0.0, "verify": 0.125, "other": 0.125}
    runs = [make_run("fairseq@beam=1", seconds=3.0), make_run("tree", parts=spent)]
    groups = results(make_experiment("fairseq@beam=1", "tree"), runs)
    (axes,) = dict(draw(groups, "tree"))["parts"].axes
    parts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert parts == [*spent, "whole"]
    bars = {(bar.get_y() > 0.5, bar.get_x(), bar.get_width()) for bar in axes.patches}
    shown = {bar for bar in bars if bar[2]}
    # Of two sentences; the milliseconds at which a bar begins, and its length.
    tree = {(True, 0, 125), (True, 125, 250), (True, 375, 62.5), (True, 437.5, 62.5)}
    assert shown == {(False, 0, 1500), *tree}


def test_plots(tmp_path: Path, matplotlib: ModuleType) -> None:
    experiment = make_experiment("AR", "tree", "constant")
    runs = [make_run("AR", counts={"committed_tokens": 8, "verified_tokens": 0})]
    assert not list(draw(results(experiment, runs), "AR"))  # of one point
    runs += [make_run("constant")]
    figures = dict(draw(results(experiment, runs), "AR"))
    assert list(figures) == ["speed", "parts", "pareto", "lengths"]
    for name, figure in figures.items():
        save_figure(figure, tmp_path / name)
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert b"</svg>" in (tmp_path / f"{name}.svg").read_bytes()


def test_the_lengths_plot_has_a_curve_of_each_system(matplotlib: ModuleType) -> None:
    """Of the first round's steps: two of the oracle's three verified 1 token, one 3."""
    sentences = {
        "oracle": [SentenceFigures(1.0, 4, verified=[1, 3]), SentenceFigures(1.0, 2, verified=[1])],
        "constant": [SentenceFigures(1.0, 4, verified=[4, 4])],
    }
    runs = [make_run(name, sentences=figures) for name, figures in sentences.items()]
    runs += [make_run(name, round=2, sentences=[]) for name in sentences]
    (axes,) = dict(draw(results(make_experiment(*sentences), runs), "oracle"))["lengths"].axes
    curves = {line.get_label(): line.get_ydata().tolist() for line in axes.lines}
    assert curves["oracle"] == pytest.approx([0, 2 / 3, 0, 1 / 3])
    assert curves["constant"] == [0, 0, 0, 0, 1]
    assert "share of steps" in axes.get_ylabel()
