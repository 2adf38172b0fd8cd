"""The examples of docs/extending.md, as they stand there, in a copy of the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from trained import Trained

from specdec_plugins.cli.inference import main

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```python\n# (\S+\.py)\n(.*?)^```", re.S | re.M)


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package and what the page adds to it."""
    folder = tmp_path_factory.mktemp("extended")
    shutil.copytree(ROOT / "specdec_plugins", folder / "specdec_plugins")
    for name, code in BLOCK.findall((ROOT / "docs/extending.md").read_text("utf-8")):
        path = folder / name
        if path.exists():  # the acceptance rules': one more, named first
            before, rules, after = path.read_text("utf-8").partition("\nRULES: ")
            (rule,) = re.findall(r"^class (\w+)", code, re.M)
            after = after.replace("= (", f"= ({rule}, ", 1)
            code = f"{before}\n{code}\n{rules}{after}"
        path.write_text(code, "utf-8")
    return folder


def run(folder: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def translate(trained: Trained, *flags: str) -> list[str]:
    source = trained.folder / "valid.en"
    pair = "--path", str(trained.drafter), "--AR-path", str(trained.verifier)
    return [
        str(trained.data),
        *pair,
        "--cpu",
        "--engine",
        "eager",
        "--input-path",
        str(source),
        *flags,
    ]


def test_a_controller_and_a_rule(extended: Path, trained: Trained, tmp_path: Path) -> None:
    """A controller changes nothing of strict output; a rule that takes less than the best does."""
    plain = tmp_path / "plain"
    assert main(translate(trained, "--strategy", "AR", "--output-path", str(plain))) == 0
    patient = translate(trained, "--controller", "patience", "--short-draft", "1")
    shared = translate(trained, "--controller", "constant", "--share", "0.0001")
    found = [tmp_path / "patient", tmp_path / "shared"]
    run(extended, "-c", BOTH, repr([patient, shared]), *map(str, found))
    strict, relaxed = (path.read_text("utf-8") for path in found)
    assert strict == plain.read_text("utf-8")
    assert relaxed.count("\n") == strict.count("\n")
    assert relaxed != strict


def test_a_drafter_and_an_engine(extended: Path, trained: Trained, tmp_path: Path) -> None:
    flags = trained.drafter_flags.replace("block_causal", "block_positioned")
    save = tmp_path / "positioned"
    common = "--source-lang en --target-lang de --cpu --optimizer adam --lr 0.01 --max-tokens 400"
    run(
        extended, "-m", "fairseq_cli.train", str(trained.data), "--save-dir", str(save),
        *common.split(), "--user-dir", str(extended / "specdec_plugins"), "--max-update", "2",
        "--num-workers", "0", *flags.split(),
    )  # fmt: skip
    timed = run(
        extended, "-c", TIMED, str(trained.data), str(save / "checkpoint_last.pt"),
        str(trained.verifier), trained.source[0],
    )  # fmt: skip
    same, *steps = timed.split()
    assert same == "True"
    assert {"VerifierStep", "DrafterStep", "EncoderStep"} <= set(steps)


BOTH = """
import ast, sys
from specdec_plugins.cli.inference import main
for command, output in zip(ast.literal_eval(sys.argv[1]), sys.argv[2:]):
    assert main([*command, "--output-path", output]) == 0
"""
TIMED = """
import sys
from timed_engine import TimedEngine
from specdec_plugins.decoding.build import build_generator
from specdec_plugins.engines.engine import Engines
from specdec_plugins.inference import Settings, load_translator
data, drafter, verifier, line = sys.argv[1:]
translator = load_translator(Settings(data=data, path=drafter, ar_path=verifier))
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
