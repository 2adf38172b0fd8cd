"""Every ``specdec-…`` command line of the pages parses."""

from __future__ import annotations

import argparse
import re
import shlex
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [page for folder in (".", "docs", "checkpoints/*") for page in ROOT.glob(f"{folder}/*.md")]
COMMANDS = {entry.name: entry for entry in entry_points(group="console_scripts")}


class ParsedError(BaseException):
    """Raised in place of a command's work."""


def command_lines() -> list[Any]:
    lines = []
    for page in PAGES:
        text = re.sub(r" \\\n\s*", " ", page.read_text("utf-8"))
        for line in re.findall(r"^(?:    )?(specdec-[^|<>`\n]*)", text, re.MULTILINE):
            if page.name != "extending.md":  # whose commands have its examples' flags
                lines.append(pytest.param(line, id=f"{page.name}-{len(lines)}"))
    return lines


@pytest.mark.parametrize("line", command_lines())
def test_command_lines_parse(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parse = argparse.ArgumentParser.parse_args

    def parse_only(self: argparse.ArgumentParser, *args: Any, **options: object) -> None:
        parse(self, *args, **options)
        raise ParsedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
    for folder in ("checkpoints", "config", "data", "docs"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)  # where a command may make its folder
    name, *argv = shlex.split(re.sub(r"\b[N]\b", "1", line), comments=True)
    with pytest.raises(ParsedError):
        COMMANDS[name].load()(argv)
