"""Every output of every command made a link to every other file of its run, or to one of another
run: nothing is lost. Other ways to name a file twice are tried by ``tests/inference``."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specdec_plugins.files.lock import OutputLock, reserved

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
MODELS = ("drafter.pt", "verifier.pt", "dict.en.txt", "dict.de.txt", "codes", "head.pt")


def load(name: str) -> Any:
    return importlib.import_module(f"specdec_plugins.cli.{name}")


Files = dict[Path, bytes]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files that no command would get as far as to read."""
    for name in (*MODELS, "in.txt", "run.jsonl", "checkpoint.pt"):
        (tmp_path / name).write_text(f"precious {name}\n")
    (tmp_path / "out").mkdir()
    return tmp_path


def contents(folder: Path) -> Files:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def models(folder: Path) -> list[str]:
    pair = ["--path", f"{folder}/drafter.pt", "--AR-path", f"{folder}/verifier.pt"]
    head = ["--acceptance-head", f"{folder}/head.pt", "--controller", "acceptance-head"]
    return [
        str(folder),
        *pair,
        *head,
        "--cpu",
    ]


@pytest.fixture
def refused(folder: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """Runs a command, which has to refuse in one line, and checks that nothing was changed."""

    def run(
        main: Callable[[list[str]], int], *arguments: object, why: str = "is the same file as"
    ) -> None:
        before = contents(folder)
        capfd.readouterr()
        assert main([str(argument) for argument in arguments]) == 1
        captured = capfd.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert why in captured.err
        assert contents(folder) == before

    return run


@pytest.mark.parametrize(
    ("script", "arguments", "outputs"),
    [
        (
            "inference",
            "{0} --AR-path {0}/verifier.pt --strategy AR --cpu --input-path {0}/in.txt "
            "--output-path {0}/out.txt --trace {0}/trace --stats-json {0}/stats",
            ("out.txt", "trace", "stats"),
        ),
        ("export_checkpoint", "{0}/checkpoint.pt {0}/small.pt", ("small.pt",)),
        ("encoder_initial", "{0}/verifier.pt {0}/initial.pt", ("initial.pt",)),
        (
            "average_checkpoints",
            "--inputs {0}/checkpoint.pt --output {0}/average.pt",
            ("average.pt",),
        ),
        ("trace_report", "{0}/run.jsonl {0}/run.html", ("run.html",)),
        ("calibrate_head", "{0}/checkpoint.pt {0}/new.pt --json {0}/new", ("new.pt", "new")),
    ],
)
def test_another_run_has_an_output(
    folder: Path, refused: Callable[..., None], script: str, arguments: str, outputs: Sequence[str]
) -> None:
    """Sweeps, benchmarks and corpora have a folder, whose lock is ``WorkFolder``'s."""
    for output in outputs:
        with reserved([("its output", folder / output)]):
            why = f"{output}: another run is at work there"
            refused(load(script).main, *arguments.format(folder).split(), why=why)


OUTPUTS = ("--output-path", "--trace", "--stats-json")


def test_inference(folder: Path, refused: Callable[..., None]) -> None:
    main = load("inference").main
    usual = {"--input-path": folder / "in.txt", "--output-path": folder / "out.txt"}
    for number, flag in enumerate(OUTPUTS):
        for name in (*MODELS, "in.txt"):
            path = folder / f"{flag}.{name}"
            path.symlink_to(folder / name)
            given = {**usual, flag: path}
            refused(main, *models(folder), *(word for pair in given.items() for word in pair))
        for other in OUTPUTS[:number]:
            (folder / "new").write_text("precious, too\n")
            path = folder / f"{flag}{other}"
            path.symlink_to(folder / "new")
            given = {**usual, flag: path, other: folder / "new"}
            refused(main, *models(folder), *(word for pair in given.items() for word in pair))
    for flag in OUTPUTS[1:3]:
        given = {**usual, flag: folder / "out.txt.resume"}
        refused(main, *models(folder), *(word for pair in given.items() for word in pair))


INPUTS = (*MODELS, "in.txt")


def each_once(outputs: Sequence[Any], inputs: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Pairs in which every output and every input is met with."""
    count = max(len(outputs), len(inputs))
    return [(outputs[i % len(outputs)], inputs[i % len(inputs)]) for i in range(count)]


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
def test_translate_corpus(folder: Path, refused: Callable[..., None]) -> None:
    main = load("translate_corpus").main
    own = [folder / "out" / name for name in ("in.txt", ".job/job.json", ".job/0/0.txt")]
    for path, name in each_once(own, INPUTS):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(folder / name)
        flags = ["--input-path", folder / "in.txt", "--output-path", folder / "out"]
        refused(main, *models(folder), *flags)
        path.unlink()


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("export_checkpoint", "checkpoint.pt"),
        ("encoder_initial", "verifier.pt"),
        ("trace_report", "run.jsonl"),
        ("calibrate_head", "checkpoint.pt"),
    ],
)
def test_one_file_to_another(
    folder: Path, refused: Callable[..., None], script: str, name: str
) -> None:
    (folder / "other").symlink_to(folder / name)
    refused(load(script).main, folder / name, folder / "other")


def test_average_checkpoints(folder: Path, refused: Callable[..., None]) -> None:
    path = folder / "other"
    path.symlink_to(folder / "drafter.pt")
    inputs = (folder / "verifier.pt", folder / "drafter.pt")
    refused(load("average_checkpoints").main, "--inputs", *inputs, "--output", path)


def test_calibrate_head(
    folder: Path, refused: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = load("calibrate_head")
    # What the checkpoint names, and not the command line.
    trained = SimpleNamespace(files=[("--data", folder / "dict.en.txt")])
    monkeypatch.setattr(script, "TrainedHead", lambda *_, **__: trained)
    monkeypatch.setattr(script, "check_plotting", lambda instead: None)
    given = ["--AR-path", folder / "verifier.pt", "--drafter", folder / "drafter.pt"]
    flags = ("OUTPUT", "--json", "--plot")
    inputs = ("checkpoint.pt", "verifier.pt", "drafter.pt", "dict.en.txt")
    (folder / "new").write_text("precious, too\n")
    for flag in flags:
        for name in (*inputs, *(f"new {other}" for other in flags if other != flag)):
            target, _, other = name.partition(" ")
            path = folder / f"{flag}.{name}"
            path.symlink_to(folder / target)
            outputs = {"OUTPUT": folder / "out.pt", flag: path}
            if other:
                outputs[other] = folder / "new"
            output = outputs.pop("OUTPUT")
            more = (word for pair in outputs.items() for word in pair)
            refused(script.main, folder / "checkpoint.pt", output, *given, *more)


def test_distill(folder: Path, refused: Callable[..., None]) -> None:
    text, dictionaries = folder / "bpe", folder / "dicts"
    for place, names in ((text, ("train", "valid", "test")), (dictionaries, ("dict",))):
        place.mkdir()
        for name in names:
            for language in ("en", "de"):
                file = f"{name}.{language}" + ".txt" * (name == "dict")
                (place / file).write_text(f"precious {file}\n")

    def main(arguments: list[str]) -> int:
        command = [str(SCRIPTS / "distill.sh"), f"{folder}/verifier.pt", *arguments, "en", "de"]
        done = subprocess.run(command, check=False)
        return done.returncode

    def distill(out: Path, dictionaries: Path = dictionaries, **why: str) -> None:
        refused(main, dictionaries, text, out, **why)

    (folder / "out" / "bpe").mkdir()
    with OutputLock(folder / "out", folder / "out" / ".lock"):
        distill(folder / "out", why="another run is at work there")
    distill(folder)  # whose bpe is the text
    inputs = [folder / "verifier.pt", *dictionaries.iterdir(), *text.iterdir()]
    (folder / "out" / "bin").mkdir()
    names = ("made_with", "preprocess.log", "bpe/train.de", "bin/dict.en.txt")
    for name, target in each_once(names, inputs):
        path = folder / "out" / name
        path.symlink_to(target)
        distill(folder / "out")
        path.unlink()
    (folder / "out" / "bin").rmdir()
    os.rename(dictionaries, folder / "out" / "bin")
    distill(folder / "out", folder / "out" / "bin")  # which is removed at the end
