"""No command writes over a file that it reads, or into a folder that is not its own."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MODELS = ("drafter.pt", "verifier.pt", "dict.en.txt", "dict.de.txt", "codes", "head.pt")
INFERENCE = (
    "{0} --path {0}/drafter.pt --AR-path {0}/verifier.pt --acceptance-head {0}/head.pt "
    "--controller acceptance-head --cpu --input-path {0}/in.txt"
)


def load(name: str) -> Any:
    return importlib.import_module(f"specdec_plugins.cli.{name}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files that no command would get as far as to read."""
    for name in (*MODELS, "in.txt", "checkpoint.pt"):
        (tmp_path / name).write_text(f"precious {name}\n")
    (tmp_path / "segmentation.json").write_text('{"tokenizer": "space"}')
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "table.md").write_text("precious table\n")
    return tmp_path


@pytest.fixture
def refused(folder: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """Run a command, which has to refuse in one line and change nothing."""

    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def run(script: str, line: str, why: str = "is the same file as") -> None:
        before = contents()
        assert load(script).main(line.format(folder).split()) == 1
        captured = capfd.readouterr()
        assert (captured.out, captured.err.count("\n")) == ("", 1)
        assert why in captured.err
        assert contents() == before

    return run


@pytest.mark.parametrize("flag", ["--output-path", "--trace", "--stats-json"])
@pytest.mark.parametrize("name", [*MODELS, "in.txt", "segmentation.json"])
def test_inference(folder: Path, refused: Callable[..., None], flag: str, name: str) -> None:
    (folder / "link").symlink_to(folder / name)
    refused("inference", f"{INFERENCE} {flag} {{0}}/link")


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("export_checkpoint", "{0}/checkpoint.pt {0}/link"),
        ("export_checkpoint", "{0}/verifier.pt {0}/dict.en.txt --dictionaries {0} -s en -t de"),
        ("encoder_initial", "{0}/checkpoint.pt {0}/link"),
        ("trace_report", "{0}/checkpoint.pt {0}/link"),
        ("calibrate_head", "{0}/checkpoint.pt {0}/link"),
        ("inference", f"{INFERENCE} --output-path {{0}}/new --trace {{0}}/new.resume"),
    ],
)
def test_one_file_to_another(
    folder: Path, refused: Callable[..., None], script: str, line: str
) -> None:
    (folder / "link").symlink_to(folder / "checkpoint.pt")
    refused(script, line)


def test_corpus(refused: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr(load("translate_corpus"), "load_translator", pytest.fail)
    refused("translate_corpus", f"{INFERENCE} --output-path {{0}}/in.txt/x", "is in the input")
