"""What is seen of a making while it is at work: bars on a terminal, else a line now and then."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from tqdm import tqdm

from specdec_plugins.files.command import tell
from specdec_plugins.jobs.make_pair.training_log import TrainingLog


class Progress:
    """Tells on standard error."""

    def __init__(self, quiet: bool = False, bars: bool = True) -> None:
        self.quiet = quiet
        self.bar_flags = ("--no-progress-bar",) if quiet or not bars else ()
        """Of the commands that stages stand for."""
        self._hidden = quiet or not bars or not sys.stderr.isatty()

    def say(self, line: str) -> None:
        if not self.quiet:
            tell(line)

    def bar(self, total: int | None, unit: str, done: int = 0) -> tqdm[NoReturn]:
        """A bar of so many units, with the time left."""
        return tqdm(total=total, initial=done, unit=unit, disable=self._hidden)

    @contextmanager
    def training(self, total: int, log: Path) -> Iterator[Callable[[], None]]:
        """What is to be called now and then while fairseq-train writes to ``log``."""
        before = TrainingLog(log)
        told = set(before.points)
        with self.bar(total, "update", before.updates) as bar:

            def look() -> None:
                now = TrainingLog(log)
                bar.update(now.updates - bar.n)
                for updates in sorted(now.points.keys() - told):
                    told.add(updates)
                    length = now.points[updates].acceptance_length
                    bar.set_postfix_str(f"acceptance length {length:.2f}")
                    if self._hidden:
                        self.say(f"  {updates} updates of {total}: acceptance length {length:.2f}")

            yield look
            look()
