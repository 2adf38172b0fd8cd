"""No command writes over a file that it reads, or into a folder that is not its own."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from specdec_plugins.cli import translate_corpus

MODELS = ("drafter.pt", "verifier.pt", "dict.en.txt", "dict.de.txt", "codes", "head.pt")
INFERENCE = (
    "{0} --path {0}/drafter.pt --AR-path {0}/verifier.pt --acceptance-head {0}/head.pt "
    "--controller acceptance-head --cpu --input-path {0}/in.txt"
)
FLAGS = ("--output-path", "--trace", "--stats-json")
EXPORT = "{0}/verifier.pt {0}/link --dictionaries {0} -s en -t de"
CASES = [
    *(("inference", f"{INFERENCE} {flag} {{0}}/link", MODELS[0]) for flag in FLAGS),
    *(
        ("inference", f"{INFERENCE} --output-path {{0}}/link", name)
        for name in (*MODELS[1:], "in.txt", "segmentation.json")
    ),
    ("inference", f"{INFERENCE} --output-path {{0}}/new --trace {{0}}/new.resume", "codes"),
    ("export_checkpoint", EXPORT, "dict.en.txt"),
    *(
        (script, "{0}/codes {0}/link", "codes")
        for script in ("export_checkpoint", "encoder_initial", "trace_report", "calibrate_head")
    ),
    ("translate_corpus", f"{INFERENCE} --output-path {{0}}/in.txt/x", "codes"),
]


@pytest.mark.parametrize(("script", "line", "linked"), CASES)
def test_precious_files_stay(
    script: str,
    line: str,
    linked: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Refused in one line before anything is read, by whatever name."""
    if script == "translate_corpus":
        pytest.importorskip("ray")
        monkeypatch.setattr(translate_corpus, "load", pytest.fail)
    for name in (*MODELS, "in.txt"):
        (tmp_path / name).write_text(f"precious {name}\n")
    (tmp_path / "segmentation.json").write_text('{"tokenizer": "space"}')
    (tmp_path / "link").symlink_to(tmp_path / linked)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    command = importlib.import_module(f"specdec_plugins.cli.{script}")
    assert command.main(line.format(tmp_path).split()) == 1
    captured = capfd.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert ("is the same file as" in captured.err) == (script != "translate_corpus")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
