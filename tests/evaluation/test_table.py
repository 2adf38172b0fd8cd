"""Figures of runs, and the table and plots that they make."""

from __future__ import annotations

from pathlib import Path

import pytest
from experiments import make_experiment, make_run, make_text
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.evaluation.plots import draw, save_figure
from specdec_plugins.evaluation.table import results, sentence_records, table


@given(st.data())
def test_identities_of_rates(data: st.DataObject) -> None:
    steps = data.draw(st.integers(1, 50))
    drafted = data.draw(st.integers(0, 500))
    verified = data.draw(st.integers(0, drafted))
    accepted = data.draw(st.integers(0, verified))
    counts = {"steps": steps, "verifier_calls": steps, "committed_tokens": accepted + steps}
    counts |= {"drafted_tokens": drafted, "verified_tokens": verified, "accepted_tokens": accepted}
    found = make_run("tree", **counts).figures()
    length, rate = found["acceptance_length"], found["verification_rate"]
    assert length == pytest.approx(1 + accepted / steps)
    assert length * rate == pytest.approx(1)
    unverified = (drafted - verified) / (accepted + steps)
    assert found["discard_rate"] - found["verified_discard_rate"] == pytest.approx(unverified)
    assert found["acceptance_rate"] * verified == pytest.approx(accepted)


def test_what_is_not_counted_has_no_rates() -> None:
    assert make_run("fairseq").figures() == {"milliseconds": 500}
    alone = make_run("drafter", verified_tokens=None, accepted_tokens=None).figures()
    assert alone["tokens_per_second"] == 8
    assert not {"acceptance_length", "verified_discard_rate"} & alone.keys()


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
    assert [row["x AR"] for row in (greedy, tree, beam)] == [
        *("1.00 (1.00 to 1.00)", "2.00 (2.00 to 2.00)", "0.50 (0.50 to 0.50)"),
    ]
    assert (tree["acceptance length"], beam["acceptance length"]) == ("2.00", "")
    assert oracle["system"] == "oracle (not real)"
    assert "BLEU" not in tree


def test_lines_unlike_those_of_AR() -> None:  # noqa: N802
    experiment = make_experiment("AR", "AR@float64", "tree", "tree@float64")
    outputs = {"AR": ["x", "y"], "AR@float64": ["x", "z"], "tree": ["x", "z"]}
    outputs["tree@float64"] = ["x", "z"]
    runs = [
        make_run(
            name,
            precision="float64" if "64" in name else "float32",
            sentences={"line": [1, 3], "seconds": [1, 1], "output": output},
        )
        for name, output in outputs.items()
    ]
    found = rows(table(experiment, runs, "AR", ""))
    assert [row["unlike AR"] for row in found] == ["", "", "1", "0"]


def test_texts_and_batches_have_tables_of_their_own() -> None:
    line = "ein Hund schläft auf dem Sofa"
    texts = [make_text("near", [line] * 2), make_text("far")]
    experiment = make_experiment("AR", texts=texts, batches=(1, 8))
    sentences = {"line": [1, 3], "seconds": [1, 1], "output": [line] * 2}
    runs = [
        make_run("AR", text=text, batch=batch, sentences=sentences)
        for text in ("near", "far")
        for batch in (1, 8)
    ]
    text = table(experiment, runs[:3], "AR", "")
    assert text.count("\n### ") == 3
    assert [row.get("BLEU") for row in rows(text)] == ["100.0", "100.0", None]


def test_records_have_the_names_of_specdec_pp() -> None:
    experiment = make_experiment("AR", "drafter", "tree", "fairseq@beam=1")
    runs = [make_run(system) for system in experiment.systems]
    runs += [make_run("tree", round=2, sentences={**runs[2].sentences, "seconds": [0.8, 1.0]})]
    (group,) = results(experiment, runs)
    records = list(sentence_records(group))
    assert [(r["system"], r["id"]) for r in records[:3]] == [("AR", 0), ("AR", 2), ("drafter", 0)]
    tree = next(r for r in records if r["system"] == "tree")
    assert (tree["spec_time"], tree["target_time"], tree["draft_time"]) == (
        *(pytest.approx(0.6), 0.4, 0.4),
    )
    assert (tree["num_mismatched_tokens"], tree["num_LM_call"]) == (3, 2)
    assert (tree["generated_length"], tree["generated_length_target"]) == (4, 4)
    assert records[0]["spec_time"] is records[-1]["generated_length"] is None


def test_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib, of the extra [plot], is not here")
    experiment = make_experiment("AR", "tree")
    plain = {"drafted_tokens": 0, "verified_tokens": 0, "accepted_tokens": 0}
    runs = [make_run("AR", **plain)]
    assert [name for name, _ in draw(results(experiment, runs))] == ["speed"]
    runs += [make_run("tree")]
    figures = dict(draw(results(experiment, runs)))
    assert list(figures) == ["speed", "pareto"]
    for name, figure in figures.items():
        save_figure(figure, tmp_path / name)
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert b"</svg>" in (tmp_path / f"{name}.svg").read_bytes()
