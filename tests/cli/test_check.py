"""``specdec-check``: its table of differences, its status, and bad input."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers.models.drafters import save_pair
from helpers.models.stand_ins import STAND_INS, StandIn

from specdec_plugins.cli import check, inference
from specdec_plugins.files.lines import Line
from specdec_plugins.inference import Translator


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_pair(tmp_path_factory.mktemp("pair"))
    (folder / "in.en").write_text("w1 w2\n\nw3 w4\n")
    return folder


def compared(output: str) -> dict[str, str]:
    """The number of lines that differ, by system, batch size, engine and precision."""
    rows = [line.strip("| ").split(" | ") for line in output.splitlines() if " %)" in line]
    return {", ".join(row[:2]): row[2].split()[0] for row in rows}


def test_a_pair_and_the_command_that_comes_next(
    pair: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert check.main([str(pair), "--lines", "2", "--as-transformer"]) == 0
    output = capfd.readouterr().out
    systems = [re.split("[@, ]", name)[0] for name in compared(output)]
    assert systems == ["AR", "AR", "constant", "tree"]
    exact = [differ for name, differ in compared(output).items() if name.endswith("eager, float64")]
    assert exact == ["0"] * 3
    (line,) = [line for line in output.splitlines() if line.startswith("  specdec-translate ")]
    words = shlex.split(line)[1:]
    assert words[1:] == ["--as-transformer"]
    assert inference.main([*words, "--input-path", str(pair / "in.en"), "--quiet"]) == 0


def test_a_multilingual_verifier_whose_dictionaries_are_elsewhere(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = STAND_INS["multilingual"].save(tmp_path / "model.pt")
    (folder := tmp_path / "dictionaries").mkdir()
    for language in ("en", "de"):
        (tmp_path / f"dict.{language}.txt").rename(folder / f"dict.{language}.txt")
    assert check.main(f"{path} --dictionaries {folder} --lines 1 -s en -t de".split()) == 0
    next_ = f" --dictionaries {folder} --source-lang en --target-lang de\n"
    assert next_ in capfd.readouterr().out


def test_a_pairs_drafter_is_found_though_its_dictionaries_are_elsewhere(
    pair: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for folder, files in (("models", "*.pt"), ("dictionaries", "dict.*")):
        (tmp_path / folder).mkdir()
        for path in pair.glob(files):
            (tmp_path / folder / path.name).symlink_to(path)
    flags = f"{tmp_path}/models --dictionaries {tmp_path}/dictionaries --lines 1"
    assert check.main(flags.split()) == 0
    output = capfd.readouterr().out
    assert [name.split("@")[0] for name in compared(output)][2:] == ["constant", "tree"]
    assert "specdec-tune" in output


@pytest.mark.parametrize(
    ("system", "precision", "status"),
    [
        ("AR@float64,engine=eager (greedy, no drafts), batch 1, eager", "float64", 1),
        ("AR (greedy, no drafts), batch 1, onnxruntime", "float32", 0),
    ],
)
def test_a_difference_is_an_error_in_float64(
    system: str,
    precision: str,
    status: int,
    pair: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    decode = check.decode

    def wrong(translator: Translator, lines: Sequence[Line]) -> list[list[str]]:
        outputs, settings = decode(translator, lines), translator.settings
        if (settings.strategy, settings.precision) == ("AR", precision):
            outputs[0] = [*outputs[0], "w1"]
        return outputs

    monkeypatch.setattr(check, "decode", wrong)
    assert check.main(f"{pair}/verifier.pt --lines 2".split()) == status
    output = capfd.readouterr().out
    assert compared(output)[f"{system}, {precision}"] == "1"
    assert ("specdec-translate" in output) == (status == 0)


def test_drawn_and_unverified_output_may_differ(
    pair: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    systems = "AR@float64,sampling=true,temperature=9 drafter@float64"
    assert check.main(f"{pair} --input-path {pair}/in.en --systems {systems}".split()) == 0
    output = capfd.readouterr().out
    assert max(map(int, compared(output).values())) > 0
    assert "all lines are stock fairseq's" not in output


def test_systems_and_batches_on_a_text(pair: Path, capfd: pytest.CaptureFixture[str]) -> None:
    systems = "heuristic@float64 beam@float64,beam=3 constant@float64,target_prefix=w1"
    flags = f"{pair} --batch 1 2 --input-path {pair}/in.en --systems {systems}"
    assert check.main(flags.split()) == 0
    assert list(compared(capfd.readouterr().out).values()) == ["0"] * 6


@pytest.mark.parametrize(
    "words",
    [
        "{pair} --lines 2 --systems beams",
        "{pair} --lines 2 --systems tree@nodes=3",
        "{pair} --lines 2 --systems AR@repetition_penalty=3",
        "{folder}/model.pt",
        "{folder}/none.pt",
        "{pair} --input-path {folder}/no_words",
        "{folder}/model.pt:model.pt",
    ],
)
def test_bad_input_is_one_line(
    words: str, pair: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    StandIn(options={"adaptive_softmax_cutoff": "8,16"}).save(tmp_path / "model.pt")
    (tmp_path / "no_words").write_text("<pad>\n")
    assert check.main(words.format(pair=pair, folder=tmp_path).split()) == 2
    assert capfd.readouterr().err.count("\n") == 1


def test_the_checked_text_is_not_named_as_text_to_learn(
    pair: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert check.main(f"{pair}/verifier.pt --input-path {pair}/in.en".split()) == 0
    (line,) = [x for x in capfd.readouterr().out.splitlines() if "specdec-make-pair" in x]
    assert "in.en" not in line
    assert "SOURCES OUT" in line
