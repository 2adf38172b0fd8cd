"""Long work in folders: it can be stopped anywhere, and the same command goes on with it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from threading import Event, Thread
from typing import Any

from tqdm import tqdm

CLOCK = "{desc} ({elapsed})"
COUNTS = "{desc} {n_fmt}/{total_fmt} {unit} ({elapsed})"


@contextmanager
def progress(hidden: bool, text: str = "", **options: Any) -> Iterator[tqdm[Any]]:
    """Show a bar, or without a ``unit`` a clock, every second; without a terminal, a line every
    30 s."""
    done = Event()
    seconds = 1
    if "unit" not in options:
        options |= {"bar_format": CLOCK, "leave": False}
    if not sys.stderr.isatty():  # only redraw() prints
        seconds = 30
        options |= {"bar_format": options.get("bar_format", COUNTS) + "\n", "delay": 1e9}
    with tqdm(desc=text, disable=hidden, **options) as bar:
        bar.set_description_str = partial(bar.set_description_str, refresh=False)

        def redraw() -> None:
            while not done.wait(seconds):
                bar.refresh()

        Thread(target=redraw, daemon=True).start()
        try:
            yield bar
        finally:
            done.set()
