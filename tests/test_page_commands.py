"""``scripts/page_commands.py`` covers every command of every page."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from types import ModuleType
from typing import Protocol

import pytest
from helpers.runs.scripts_here import SCRIPTS, TOOLS, load_script

ROOT = SCRIPTS.parent
PAGES = ["README.md", "data/README.md"]
PAGES += [
    str(path.relative_to(ROOT))
    for pattern in ("docs/*.md", "checkpoints/*/README.md")
    for path in ROOT.glob(pattern)
    if path.name != "extending.md"  # whose examples have a test of their own
]
NOT_RUN = {
    "# git clone: this is a copy of the clone",
    "# activate: the clean room's environment is active",
    "# pip install: the clean room's first step",
    "# pip install: for machines with an NVIDIA GPU",
    "# pip install: the clean room has done so",
    "# published weights, which are not shipped",
    "# torchrun: tests/tasks/test_data_parallel.py runs it",
    "# calibrate_head.py: it has a test of its own",
}
# AR is the name of a system, SAVE_DIR that of a folder.
PLACEHOLDER = re.compile(r"<[a-z ]+>|\.\.\.|(?<![\w$-])(?!(AR|SAVE_DIR|PWD)\b)[A-Z][A-Z_]+\b(?!=)")
SHELL_WORDS = {"for", "W=checkpoints/wmt.en-de"}
PATHS = os.pathsep.join([str(TOOLS), os.environ["PATH"]])


class Command(Protocol):
    """A command of a page, as the script has it."""

    written: str
    run: str


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("page_commands")


@pytest.fixture(scope="module")
def commands(script: ModuleType) -> list[Command]:
    texts = (ROOT.joinpath(page).read_text("utf-8") for page in PAGES)
    return [command for text in texts for command in script.page_commands(text)]


def test_every_line_of_code_is_a_command(commands: list[Command]) -> None:
    written = "\n".join(command.written for command in commands)
    flat = re.sub(r"\s+", " ", written)
    for page in PAGES:
        text = ROOT.joinpath(page).read_text("utf-8")
        text = re.sub(r"^```text\n.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        lines = [line for line in text.splitlines() if line.startswith("    ")]
        assert lines
        for line in lines:
            assert re.sub(r"\s+", " ", line.removesuffix("\\")).strip() in flat


def test_what_is_not_run_is_known(commands: list[Command]) -> None:
    assert {command.run for command in commands if command.run.startswith("#")} == NOT_RUN


def test_every_command_is_a_program_with_its_inputs(commands: list[Command]) -> None:
    for command in commands:
        if command.run.startswith(("#", "python3 - <<")):
            continue
        assert not PLACEHOLDER.search(command.run), command.run
        words = shlex.split(command.run)
        program = next(word for word in words if word == words[-1] or not re.match("[A-Z]+=", word))
        if program in SHELL_WORDS:
            continue
        program = program.removeprefix("runs/packed/")  # a copy of these scripts
        file = ROOT / program if "/" in program else shutil.which(program, path=PATHS)
        assert file
        assert os.access(file, os.X_OK), f"{program} cannot be executed"


def test_every_replacement_is_of_some_command(script: ModuleType, commands: list[Command]) -> None:
    used = set()
    for command in commands:
        run = command.written
        for pattern, small in script.SMALL.items():
            if re.search(pattern, run):
                used.add(pattern)
            run = re.sub(pattern, small, run)
    assert used == {*script.SMALL}


def test_a_loop_is_a_command(script: ModuleType) -> None:
    loop = "    for l in en de; do\n        echo $l\n    done\n"
    text = f"Text.\n\n{loop}    echo \\\n        b\n\nText.\n"
    runs = [command.run for command in script.page_commands(text)]
    assert runs == ["for l in en de; do\n    echo $l\ndone", "echo b"]
    with pytest.raises(ValueError, match="no end of this command: for"):
        script.page_commands("    for l in en de; do\n")
