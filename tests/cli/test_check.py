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


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_pair(tmp_path_factory.mktemp("pair"))
    (folder / "in.en").write_text("w1 w2\n\nw3 w4\n")
    return folder


def compared(output: str) -> dict[str, str]:
    """The number of lines that differ, by system, batch size and what it was decoded by."""
    rows = [line.strip("| ").split(" | ") for line in output.splitlines() if " %)" in line]
    return {", ".join(row[:3]): row[3].split()[0] for row in rows}


def test_a_pair_and_the_command_that_comes_next(
    pair: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert check.main([str(pair), *FEW]) == 0
    output = capfd.readouterr().out
    systems = [name.partition("@")[0].partition(",")[0] for name in compared(output)]
    assert systems == ["AR", "AR", "constant", "tree"]
    exact = [differ for name, differ in compared(output).items() if name.endswith("eager, float64")]
    assert exact == ["0"] * 3
    assert "| fairseq | 1 | eager, float32 |" in output
    (line,) = [line for line in output.splitlines() if line.startswith("  specdec-translate ")]
    words = shlex.split(line.partition(" < FILE")[0])[1:]
    assert inference.main([*words, "--input-path", str(pair / "in.en"), "--quiet"]) == 0


def test_a_multilingual_verifier_whose_dictionaries_are_elsewhere(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = STAND_INS["multilingual"].save(tmp_path / "model.pt")
    (folder := tmp_path / "dictionaries").mkdir()
    for language in ("en", "de"):
        (tmp_path / f"dict.{language}.txt").rename(folder / f"dict.{language}.txt")
    flags = f"--dictionaries {folder} --lines 1 -s en -t de"
    assert check.main([str(path), *flags.split()]) == 0
    output = capfd.readouterr().out
    assert "encoder: 2 layers of widths 16 and " in output
    assert f" --dictionaries {folder} --source-lang en --target-lang de " in output


@pytest.mark.parametrize(
    ("system", "precision", "status"),
    [("AR@float64,engine=eager", "float64", 1), ("AR", "float32", 0)],
)
def test_a_difference(
    system: str,
    precision: str,
    status: int,
    pair: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """In float64 it is an error, in float32 it is told."""
    decode = check.decode

    def wrong(translator: Translator, lines: Sequence[Line]) -> list[list[str]]:
        outputs = decode(translator, lines)
        settings = translator.settings
        if (settings.strategy, settings.precision) == ("AR", precision):
            outputs[0] = [*outputs[0], "w1"]
        return outputs

    monkeypatch.setattr(check, "decode", wrong)
    assert check.main([str(pair / "verifier.pt"), *FEW]) == status
    output = capfd.readouterr().out
    assert compared(output)[f"{system}, 1, eager, {precision}"] == "1"
    assert ("specdec-translate" in output) == (status == 0)


def test_systems_and_batches_on_a_text(pair: Path, capfd: pytest.CaptureFixture[str]) -> None:
    names = ("heuristic@float64", "AR@float64", "constant@float64,target_prefix=w1")
    flags = ["--batch", "1", "2", "--input-path", str(pair / "in.en"), "--systems", *names]
    assert check.main([str(pair), *flags]) == 0
    output = capfd.readouterr().out
    assert "\n2 lines; " in output
    assert list(compared(output).values()) == ["0"] * 6


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("{pair} --lines 2 --systems beam", "--systems beam: "),
        ("{pair} --lines 2 --systems tree@nodes=3", "--systems tree@nodes=3: "),
        ("{pair} --lines 2 --systems AR@repetition_penalty=3", "--repetition-penalty 3.0: "),
        ("{folder}/model.pt", "adaptive softmax is not supported"),
        ("{folder}/none.pt", "none.pt"),
        ("{folder}/model.pt:model.pt", "only one"),
    ],
)
def test_what_cannot_be_checked(
    words: str, message: str, pair: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    StandIn(options={"adaptive_softmax_cutoff": "8,16"}).save(tmp_path / "model.pt")
    assert check.main(words.format(pair=pair, folder=tmp_path).split()) == 2
    error = capfd.readouterr().err
    assert message in error
    assert error.count("\n") == 1
