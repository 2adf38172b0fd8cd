"""The texts of a sweep, each with a name and perhaps a translation."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from sacrebleu.metrics.bleu import BLEU

from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.input import InputLines, Line
from specdec_plugins.files.json_object import JsonObject


@dataclass(frozen=True)
class Text:
    """A text that systems are compared on."""

    name: str
    """Also of files; empty of a text that is alone."""
    lines: Sequence[Line]
    references: Sequence[str] | None = None
    """Its translation, line by line."""

    def describe(self) -> JsonObject:
        """What decides the runs on it."""
        text = "\n".join(line.text for line in self.lines)
        digest = hashlib.sha256(text.encode("utf-8")).hexdigest()
        return {"lines": len(self.lines), "sha256": digest}

    def bleu(self, numbers: Sequence[int], output: Sequence[str]) -> float | None:
        """sacreBLEU's score of the translations of these lines; None without references.

        Args:
            numbers: of lines, from 1.
        """
        if self.references is None or not output:
            return None
        wanted = [self.references[number - 1] for number in numbers]
        return float(BLEU().corpus_score(output, [wanted]).score)


def open_texts(
    paths: Sequence[str],
    names: Sequence[str] | None,
    references: Sequence[str] | None,
    most: int | None,
) -> list[Text]:
    """The texts that ``--input-path``, ``--text-name`` and ``--reference`` name.

    Args:
        names: None is the files' own names, and no name where there is only one file.
        most: lines of each.

    Raises:
        InferenceError: a file cannot be read, holds no sentence, or not as many as its text.
        ValueError: not as many names or references as texts, a name that cannot be or is there
            twice, or no such number of lines.
    """
    given = (("--text-name", names), ("--reference", references))
    for flag, values in given:
        if values is not None and len(values) != len(paths):
            raise ValueError(
                f"{flag}: {len(values)} for {len(paths)} files of --input-path; give one for each"
            )
    alone = len(paths) == 1
    called = names or ([""] if alone else [Path(path).stem for path in paths])
    for name in called:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) and not (alone and names is None):
            raise ValueError(
                f"--text-name {name!r}: must be of letters, digits, points and hyphens, since "
                "files are named after it"
            )
        if called.count(name) > 1:
            raise ValueError(f"--text-name {name}: is of several texts; give each its own")
    texts = [read_text(path, most) for path in paths]
    found = [
        None if references is None else read_references(references[i], most, texts[i], path)
        for i, path in enumerate(paths)
    ]
    return [Text(*parts) for parts in zip(called, texts, found, strict=True)]


def read_text(path: str, most: int | None, flag: str = "--input-path") -> list[Line]:
    """The text that ``flag`` names.

    Raises:
        InferenceError: it cannot be read, or there is none.
        ValueError: no such number of lines.
    """
    if most is not None and most < 1:
        raise ValueError(f"--lines {most}: must be at least 1")
    with InputLines.open(path, flag) as source:
        lines = list(islice(source, most))
        source.check()
    if not any(line.text.strip() for line in lines):
        raise InferenceError(f"{flag} {path}: holds no sentence; name a text")
    return lines


def read_references(
    path: str, most: int | None, lines: Sequence[Line], text: str, flag: str = "--input-path"
) -> list[str]:
    """The translation of ``lines``, which ``flag`` named as ``text``.

    Raises:
        InferenceError: it cannot be read, or is not as long.
        ValueError: no such number of lines.
    """
    references = [line.text for line in read_text(path, most, "--reference")]
    if len(references) != len(lines):
        raise InferenceError(
            f"--reference {path}: has {len(references)} lines, and {flag} {text} {len(lines)}; "
            "give files that match line by line"
        )
    return references
