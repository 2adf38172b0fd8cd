"""The examples of docs/extending.md, as they stand there, in a copy of the package."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from helpers.models.trained import Trained
from helpers.page_examples import page_examples
from helpers.runs.scripts_here import run

from specdec_plugins.cli.inference import main

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def extended(tmp_path: Path) -> Path:
    """A folder with the package and what the page adds to it."""
    folder = tmp_path / "extended"
    shutil.copytree(ROOT / "specdec_plugins", folder / "specdec_plugins")
    for name, code in page_examples().items():
        (folder / name).write_text(code, "utf-8")
    return folder


def translate(trained: Trained, *flags: str) -> list[str]:
    """A command line of ``inference.py`` for the valid set."""
    pair = "--path", str(trained.drafter), "--AR-path", str(trained.verifier)
    files = "--input-path", str(trained.folder / "valid.en")
    return [str(trained.data), *pair, "--cpu", *files, *flags]


def test_all_of_them(extended: Path, trained: Trained, tmp_path: Path) -> None:
    """A controller and a kind of draft change nothing of strict output; a rule that takes less than
    the best does. A drafter is trained, and decodes by an engine as by another."""
    names = {
        name: str(tmp_path / name) for name in ("plain", "patient", "previous", "shared", "copied")
    }
    same = tmp_path / "same.en"
    same.write_text(3 * f"{trained.source[0]}\n")
    again = "--input-path", str(same), "--stats-json", str(tmp_path / "repeated.json")
    lines = [
        translate(trained, "--controller", "patience", "--short-draft", "1"),
        translate(trained, "--drafts", "previous", "--stats-json", str(tmp_path / "previous.json")),
        translate(trained, "--controller", "constant", "--share", "0.0001"),
    ]
    commands = [
        [*line, "--output-path", names[name]] for line, name in zip(lines, list(names)[1:4])
    ]
    flags = (
        f"{trained.data} --save-dir {tmp_path} --source-lang en --target-lang de --cpu "
        f"--optimizer adam --lr 0.01 --max-tokens 400 --user-dir {extended}/specdec_plugins "
        f"--max-update 2 --num-workers 0 --disable-validation {trained.drafter_flags}"
    ).replace("block_causal", "block_positioned")
    pair = str(trained.data), str(tmp_path / "checkpoint_last.pt"), str(trained.verifier)
    commands.append(translate(trained, "--drafts", "previous", *again))
    patient = "--controller", "patience", "--drafts", "copy", "--output-path", names["copied"]
    commands.append(translate(trained, *patient))
    given = repr(commands), flags, *pair, trained.source[0]
    there = {"folder": extended, "status": 0, "PYTHONPATH": extended}
    done = run(sys.executable, "-c", ALL, *given, **there)
    is_same, *steps = done.stdout.splitlines()[-1].split()
    assert is_same == "True"
    assert {"VerifierStep", "DrafterStep", "EncoderStep"} <= set(steps)
    plain = translate(trained, "--strategy", "AR", "--output-path", names["plain"])
    assert main(plain) == 0
    outputs = [Path(path).read_text("utf-8") for path in names.values()]
    greedy, strict, previous, relaxed, copied = outputs
    assert strict == previous == copied == greedy
    statistics = json.loads((tmp_path / "previous.json").read_bytes())
    assert statistics["accepted_tokens"] > 0
    assert statistics["engine"] == "onnxruntime"
    # All of a sentence but EOS is drafted when it comes again.
    repeated = json.loads((tmp_path / "repeated.json").read_bytes())
    assert repeated["accepted_tokens"] >= 2 * (repeated["committed_tokens"] // 3 - 1) > 0
    assert relaxed.count("\n") == strict.count("\n")
    assert relaxed != strict


ALL = """
import ast, sys
from specdec_plugins.cli.inference import main
import share  # a file beside the package
commands, flags, data, drafter, verifier, line = sys.argv[1:]
for command in ast.literal_eval(commands):
    assert main(command) == 0

from specdec_plugins.decoding.acceptance.rules import choose_rule
try:
    choose_rule({"share": 0.5, "beta": 3})
except ValueError as error:
    assert "only one rule" in str(error)
else:
    raise AssertionError

from fairseq_cli import train
sys.argv = ["fairseq-train", *flags.split()]
train.cli_main()

from timed_engine import TimedEngine
from specdec_plugins.decoding.build import build_generator
from specdec_plugins.engines.engine import Engines
from specdec_plugins.inference import Settings, load_translator
translator = load_translator(Settings(data, verifier, drafter, engine="eager"))
plain = translator.generator
assert type(plain.drafter).__name__ == "BlockPositionedDrafter"
engine, target = TimedEngine(), translator.codec.target
engines = Engines.both(engine)
translator.generator = build_generator(plain.model, plain.drafter, target, engines=engines)
(first,) = translator.translate([line])
translator.generator = plain
(again,) = translator.translate([line])
print(first.text == again.text, *engine.seconds)
"""
