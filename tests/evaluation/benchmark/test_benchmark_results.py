"""Medians, ratios within rounds, BLEU and differences; the table and the picture of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import SYSTEMS, TEXTS, make_measurement, make_measurements

from specdec_plugins.evaluation.benchmark.measurements import BenchmarkFolder, Measurement
from specdec_plugins.evaluation.benchmark.plots import draw_speed
from specdec_plugins.evaluation.benchmark.results import BatchResult, collect
from specdec_plugins.evaluation.benchmark.table import format_results
from specdec_plugins.evaluation.bleu import References
from specdec_plugins.files.errors import InferenceError

BASELINE = "CTranslate2 float32"


def results(runs: list[Measurement], references: list[str] | None = None) -> list[BatchResult]:
    return collect(runs, SYSTEMS, BASELINE, references and References(references, "de"))


def test_medians_and_ratios_within_rounds() -> None:
    (result,) = results(make_measurements())
    assert [system.system for system in result.systems] == SYSTEMS
    first, baseline = result.systems[0], result.systems[1]
    assert (first.milliseconds.low, first.milliseconds.median) == (500, 1000)
    assert first.milliseconds.high == 1500
    # Seconds differ by round, ratios do not.
    assert first.over_baseline is not None
    assert (first.over_baseline.low, first.over_baseline.high) == (2, 2)
    assert baseline.over_baseline is not None
    assert baseline.over_baseline.median == 1
    # The baseline has as many threads.
    second = result.systems[len(SYSTEMS) // 2]
    assert second.system.label == "fairseq beam 1, 2 threads"
    assert second.over_baseline is not None
    assert second.over_baseline.median == pytest.approx(9 / 8)
    assert first.peak_memory == 3


def test_without_the_baseline_nothing_is_compared() -> None:
    (result,) = results([make_measurement(SYSTEMS[0])])
    (only,) = result.systems
    assert only.over_baseline is only.bleu is only.unlike_ar is only.unlike_ctranslate2 is None
    assert result.leaders() == []


def test_bleu_and_differences_are_those_of_round_1() -> None:
    other = [TEXTS[0], "zwei Frauen stehen auf einer Bank ."]
    fairseq, reference, int8, ar, ar16, strict, strict16 = SYSTEMS[:7]
    runs = [make_measurement(s) for s in (reference, int8, ar)]
    runs += [make_measurement(s, output=other) for s in (fairseq, ar16, strict, strict16)]
    runs += [make_measurement(s, round=2) for s in (fairseq, strict)]
    (result,) = results(runs, TEXTS)
    found = {s.system: (s.unlike_ar, s.unlike_ctranslate2) for s in result.systems}
    assert found == {
        fairseq: (1, 1),
        reference: (None, 0),
        int8: (None, 0),
        ar: (0, 0),
        ar16: (0, 1),
        strict: (1, 1),
        strict16: (0, 1),
    }
    bleu = {s.system: s.bleu for s in result.systems if s.bleu is not None}
    for score, other_score in (
        (bleu[ar].sacrebleu, bleu[strict].sacrebleu),
        (bleu[ar].tokenised, bleu[strict].tokenised),
    ):
        assert score == pytest.approx(100)
        assert other_score < 90


def test_the_fastest_of_each_family() -> None:
    (result,) = results(make_measurements())
    told = [(x.system.system.label, x.over.system.label, x.ratio.median) for x in result.leaders()]
    strict = "strict tree float32, 1 thread"
    assert told == [
        (strict, "fairseq beam 1, 1 thread", pytest.approx(1 / 6)),
        (strict, "CTranslate2 float32, 1 thread", pytest.approx(2 / 6)),
        (strict, "AR float32, 1 thread", pytest.approx(4 / 6)),
    ]


def test_the_table() -> None:
    runs = make_measurements() + make_measurements(rounds=2, batch=8)
    text = format_results(results(runs, TEXTS), "a processor, 4 cores", BASELINE, "signed")
    lines = text.splitlines()
    assert lines[0] == "### a processor, 4 cores, batch 1"
    rows = [line.split(" | ") for line in lines if line.startswith("| ")]
    assert len(rows) == 2 * (1 + len(SYSTEMS))
    assert len({len(row) for row in rows}) == 1
    assert rows[1][:4] == [
        "| fairseq beam 1", "1", "1000.0 (500.0 to 1500.0)", "2.00 (2.00 to 2.00)",
    ]  # fmt: skip
    assert rows[6] == [
        "| strict tree float32", "1", "6000.0 (3000.0 to 9000.0)", "0.33 (0.33 to 0.33)",
        "100.0", "100.0", "4.00", "0.250", "3.000", "3", "0/2", "0/2 |",
    ]  # fmt: skip
    assert rows[2][10] == "", "CTranslate2 has no AR beside it"
    assert text.count("alternating rounds (2 to 3)") == 1
    assert "sacreBLEU signed." in text
    assert "as fast as AR float32, 1 thread, the fastest AR." in text


def test_a_measurement_is_read_as_it_was_written(tmp_path: Path) -> None:
    runs = [make_measurement(SYSTEMS[0], seconds=0.1), make_measurement(SYSTEMS[5], round=2)]
    for number in range(2):
        with BenchmarkFolder(tmp_path, {"a": 1}) as folder:
            assert folder.runs == runs[:number]
            folder.add(runs[number])
    with pytest.raises(InferenceError, match="was begun with other a"):
        BenchmarkFolder(tmp_path, {"a": 2}).__enter__()


@pytest.mark.parametrize(
    "change", [{"seconds": 0}, {"sentences": 0}, {"round": -1}, {"new": 1}, {"output": None}]
)
def test_what_is_no_measurement_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    record = json.loads(make_measurement(SYSTEMS[0]).to_json())
    (tmp_path / "runs.jsonl").write_text(json.dumps({**record, **change}) + "\n")
    with pytest.raises(InferenceError, match=r"runs.jsonl, line 1: is no run"):
        BenchmarkFolder(tmp_path, {}).__enter__()


def test_the_picture() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib, of the extra [bench], is not here")
    found = results(make_measurements() + make_measurements(batch=8))
    pictures = draw_speed(found, "a title")
    assert set(pictures) == {"png", "svg"}
    assert pictures["png"].startswith(b"\x89PNG")
    shown = pictures["svg"].decode()
    for text in ("a title", "batch 1", "batch 8", "fairseq beam 1", "strict tree bfloat16"):
        assert f"<!-- {text} -->" in shown
    assert "<!-- 1 thread -->" in shown
    assert "<!-- 2 threads -->" in shown
    assert "milliseconds a sentence" in shown
    one = [run for run in make_measurements() if run.system.endswith("1 thread")]
    shown = draw_speed(results(one), "")["svg"].decode()
    assert "<!-- 1 thread -->" in shown
    assert "<!-- 2 threads -->" not in shown
