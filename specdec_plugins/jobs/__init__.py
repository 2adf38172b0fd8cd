"""Long work in folders: it can be stopped anywhere, and the same command goes on with it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

from tqdm import tqdm

from specdec_plugins.files.output import JsonObject

LOADING: JsonObject = {
    "desc": "loading and compiling the models, about 10 s, more for large ones",
    "bar_format": "{desc} ({elapsed})",
    "leave": False,
}
AS_LINES: JsonObject = {
    "delay": 1e9,
    "bar_format": "{desc} {n_fmt}/{total_fmt} {unit}, {elapsed}\n",
}
"""Options of a bar that prints a line when it is refreshed, and only then."""


@contextmanager
def progress(hidden: bool = False, **options: Any) -> Iterator[tqdm[Any]]:
    """Show a bar, redrawn every second; without a terminal, print a line every 30 s."""
    done, on_terminal = Event(), sys.stderr.isatty()
    with tqdm(disable=hidden, **{**options, **({} if on_terminal else AS_LINES)}) as bar:

        def redraw() -> None:
            while not done.wait(1 if on_terminal else 30):
                bar.refresh()

        Thread(target=redraw, daemon=True).start()
        try:
            yield bar
        finally:
            done.set()
