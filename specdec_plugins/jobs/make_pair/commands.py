"""The commands that a stage stands for, as a user would type them."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

PREPROCESS = "fairseq-preprocess"


@dataclass(frozen=True)
class Command:
    """A command of this package, or fairseq's preprocessing."""

    script: str
    """The name of its script, or :data:`PREPROCESS`."""
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        module = "export" if self.script == "export_checkpoint" else self.script
        name = module if module == PREPROCESS else f"specdec-{module.replace('_', '-')}"
        return shlex.join([name, *self.arguments])


class Runner(Protocol):
    """Runs commands, in this process or another."""

    def run(self, command: Command) -> str:
        """Run it to its end.

        Returns:
            what it put out.

        Raises:
            SpecdecError: what stopped it.
        """
        ...

    def watch(self, command: Command, log: Path, look: Callable[[], object]) -> None:
        """Run it in a process of its own, which adds what it says to a file, and look now and then.
        The process ends with this one, however that ends; an interruption ends it, too.

        Raises:
            InferenceError: it failed; says its last line.
        """
        ...


def command(script: str, *arguments: object) -> Command:
    """Return a command of anything that is text."""
    return Command(script, tuple(map(str, arguments)))
