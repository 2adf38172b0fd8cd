"""How ``--help`` looks: what a command does, its flags and their defaults, and an example."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import NoReturn

EXAMPLE = re.compile(r"\n((?:    \S.*\n(?: {4,}.*\n)*)+)")
"""The first indented lines of a module's text."""
SCRIPT = re.compile(r"scripts/(\w+)\.py")
"""A command as it is called in a clone."""


UNTOLD: tuple[object, ...] = (argparse.SUPPRESS, "???", "", [], ())
"""Defaults that say nothing; the question marks are omegaconf's, of what has none."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Shows the default of each flag that has one to be told, unless its help ends in one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text, default = action.help, action.default
        untold = default is None or isinstance(default, bool) or default in UNTOLD
        if not text or untold or not action.option_strings or text.endswith(")"):
            return text
        shown = " ".join(map(str, default)) if isinstance(default, (list, tuple)) else str(default)
        return f"{text} ({shown.replace('%', '%%')})"


def command_of(script: str) -> str:
    """Return the console command of a script, as setup.py names it."""
    short = {"inference": "translate", "export_checkpoint": "export"}
    return "specdec-" + short.get(script, script).replace("_", "-")


class Parser(argparse.ArgumentParser):
    """A command's parser: the text of its module is the description, whose indented lines are the
    example. Errors are one line."""

    def __init__(self, prog: str, text: str | None, usage: str | None = None) -> None:
        whole, epilog = f"{text or ''}\n", None
        found = EXAMPLE.search(whole)
        if found is not None:
            example, called = found[1].rstrip(), Path(sys.argv[0]).name
            if called.startswith("specdec-"):
                example = SCRIPT.sub(lambda script: command_of(script[1]), example)
            whole = whole[: found.start()] + whole[found.end() :]
            epilog = f"example:\n{example}"
        super().__init__(
            prog, usage, whole, epilog, formatter_class=HelpFormatter, allow_abbrev=False
        )

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 and one line."""
        self.exit(2, f"{self.prog}: {' '.join(message.split())}\n")
