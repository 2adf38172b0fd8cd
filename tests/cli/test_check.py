"""``specdec-check``: what it tells of a verifier, and what it ends with."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
from drafters import save_pair
from stand_ins import STAND_INS, StandIn

from specdec_plugins.cli import check, inference
from specdec_plugins.files.lines import Line
from specdec_plugins.inference import Translator

FEW = ("--lines", "2")
PAIR = Path(__file__).resolve().parents[2] / "checkpoints" / "multi30k.en-de"


def compared(output: str) -> dict[str, str]:
    """The number of lines that differ, by system, batch size and what it was decoded by."""
    rows = [line.strip("| ").split(" | ") for line in output.splitlines() if " %)" in line]
    return {", ".join(row[:3]): row[3].split()[0] for row in rows}


def test_a_pair_and_the_command_that_comes_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """By every engine that is installed; without a text lines are made, the same ones each time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = save_pair(tmp_path)
    assert check.main([str(folder), *FEW]) == 0
    output = capfd.readouterr().out
    systems = [name.partition("@")[0].partition(",")[0] for name in compared(output)]
    assert systems == ["AR", "AR", "constant", "tree"]
    exact = [differ for name, differ in compared(output).items() if name.endswith("eager, float64")]
    assert exact == ["0"] * 3
    assert "| fairseq | 1 | eager, float32 |" in output
    (line,) = [line for line in output.splitlines() if line.startswith("  specdec-translate ")]
    (text := tmp_path / "in.en").write_text("w1 w2\n")
    words = shlex.split(line.partition(" < FILE")[0])[1:]
    assert inference.main([*words, "--input-path", str(text), "--quiet"]) == 0


def test_a_text_and_dictionaries_elsewhere(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = StandIn().save(tmp_path / "model.pt")
    (text := tmp_path / "in.en").write_text("w1 w2\n\nw3\nw4\n")
    (folder := tmp_path / "dictionaries").mkdir()
    for language in ("en", "de"):
        (tmp_path / f"dict.{language}.txt").rename(folder / f"dict.{language}.txt")
    flags = ["--dictionaries", str(folder), "--input-path", str(text), "--lines", "3"]
    assert check.main([str(path), *flags]) == 0
    assert "\n2 lines; " in capfd.readouterr().out


def test_a_multilingual_verifier(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = STAND_INS["multilingual"].save(tmp_path / "model.pt")
    assert check.main([str(path), "--lines", "1", "-s", "en", "-t", "de"]) == 0
    output = capfd.readouterr().out
    assert "encoder: 2 layers of widths 16 and " in output
    assert " --source-lang en --target-lang de " in output


@pytest.mark.parametrize(
    ("system", "precision", "status"),
    [("AR@float64,engine=eager", "float64", 1), ("AR", "float32", 0)],
)
def test_a_difference(
    system: str,
    precision: str,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """In float64 it is an error, in float32 it is told."""

    def wrong(translator: Translator, lines: Sequence[Line]) -> list[list[str]]:
        outputs = decode(translator, lines)
        settings = translator.settings
        if (settings.strategy, settings.precision) == ("AR", precision):
            outputs[0] = [*outputs[0], "w1"]
        return outputs

    decode = check.decode
    monkeypatch.setattr(check, "decode", wrong)
    path = StandIn().save(tmp_path / "model.pt")
    assert check.main([str(path), *FEW]) == status
    output = capfd.readouterr().out
    assert compared(output)[f"{system}, 1, eager, {precision}"] == "1"
    assert ("specdec-translate" in output) == (status == 0)


def test_systems_and_batches(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (text := tmp_path / "in.en").write_text("A dog runs.\n\nTwo men are talking.\n")
    names = ("heuristic@float64", "AR@float64", "constant@float64,target_prefix=Ein")
    flags = ["--batch", "1", "2", "--input-path", str(text), "--systems", *names]
    assert check.main([str(PAIR), *flags]) == 0
    output = capfd.readouterr().out
    assert list(compared(output).values()) == ["0"] * 6
    assert check.main([str(PAIR), *FEW, "--systems", "AR@repetition_penalty=3"]) == 2
    error = capfd.readouterr().err
    assert "--repetition-penalty 3.0: cannot be had with --strategy fairseq" in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("{pair} --lines 2 --systems beam", "--systems beam: "),
        ("{pair} --lines 2 --systems tree@nodes=3", "--systems tree@nodes=3: "),
        ("{folder}/model.pt", "adaptive softmax is not supported"),
        ("{folder}/none.pt", "none.pt"),
        ("{folder}/model.pt:model.pt", "only one"),
    ],
)
def test_what_cannot_be_checked(
    words: str, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    StandIn(options={"adaptive_softmax_cutoff": "8,16"}).save(tmp_path / "model.pt")
    assert check.main(words.format(pair=PAIR, folder=tmp_path).split()) == 2
    error = capfd.readouterr().err
    assert message in error
    assert error.count("\n") == 1
