"""Texts that scripts read: lines of UTF-8, which end at line feeds and nowhere else."""

from __future__ import annotations

import os

import installed  # noqa: F401 (first)

from specdec_plugins.files.errors import InferenceError, counted
from specdec_plugins.files.lines import InputLines


def lines_of(path: str | os.PathLike[str]) -> list[str]:
    """Return the lines of a file, of which there must be one; ``-`` is standard input."""
    with InputLines.open(str(path)) as source:
        lines = [line.text for line in source]
        source.check()
    if not lines:
        raise InferenceError(f"{path}: is empty")
    return lines


def aligned(*paths: str | os.PathLike[str]) -> list[list[str]]:
    """Return the lines of texts that have as many lines as the first."""
    texts = [lines_of(path) for path in paths]
    for path, lines in zip(paths, texts, strict=True):
        if len(lines) != len(texts[0]):
            first = counted(len(texts[0]), "line")
            raise InferenceError(f"{paths[0]} has {first}, and {path} {len(lines)}")
    return texts
