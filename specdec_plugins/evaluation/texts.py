"""The texts that systems are compared on, each with a name and perhaps a translation."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch

from specdec_plugins.evaluation.bleu import References
from specdec_plugins.evaluation.worker import Tokens
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.lines import InputLines, Line
from specdec_plugins.files.output import JsonObject
from specdec_plugins.inference.text import TextCodec
from specdec_plugins.inference.translator import Translator


@dataclass
class NamedText:
    """A text as it was read."""

    name: str
    """The name, of files too; empty of a text that is alone."""
    lines: Sequence[Line]
    references: Sequence[str] | None = None
    """Its translation, line by line."""


@dataclass(frozen=True)
class Sentences:
    """The lines with words of a text, segmented, in the order of the text."""

    name: str
    lines: Sequence[Line]
    tokens: Sequence[Tokens]
    """Symbols of the source dictionary of each line."""
    most: Sequence[int]
    """The most target tokens of each line, EOS not counted."""
    references: References | None
    """The translation of each line, by which BLEU is counted."""
    codec: TextCodec

    @classmethod
    def of(cls, text: NamedText, translator: Translator) -> Sentences:
        """Segment a text as the translator does, whose limits are those of all systems."""
        settings, codec = translator.settings, translator.codec
        positions = translator.generator.positions
        encoded = [(place, codec.encode(line)) for place, line in enumerate(text.lines)]
        worded = [(place, ids) for place, ids in encoded if ids is not None]
        references = None
        if text.references is not None:
            wanted = [text.references[place] for place, _ in worded]
            # Untokenised text has no tokenizer given, and its translation is tokenised, too.
            tokenised = settings.tokenizer is None
            references = References(wanted, settings.target_lang or "", tokenised)
        return cls(
            name=text.name,
            lines=[text.lines[place] for place, _ in worded],
            tokens=[[codec.source[i] for i in ids[:-1]] for _, ids in worded],
            most=[settings.limits.most(len(ids), positions) for _, ids in worded],
            references=references,
            codec=codec,
        )

    def batches(self, size: int) -> list[list[int]]:
        """Indices of the sentences in batches, the longest sentences first: a batch that is too
        large fails at once. At batch 1 they are in the order of the text."""
        order = list(range(len(self.tokens)))
        if size > 1:
            order.sort(key=lambda i: -len(self.tokens[i]))
        return [order[start : start + size] for start in range(0, len(order), size)]

    def joined(self, symbols: Tokens) -> str:
        """Return a translation in symbols of the target dictionary as text."""
        ids = [self.codec.target.index(symbol) for symbol in symbols]
        return self.codec.decode(torch.tensor(ids).long())

    def describe(self) -> JsonObject:
        """Return the facts by which the text is known again."""
        text = "\n".join(line.text for line in self.lines).encode("utf-8")
        return {"lines": len(self.lines), "sha256": hashlib.sha256(text).hexdigest()}


def open_texts(
    paths: Sequence[str],
    names: Sequence[str] | None,
    references: Sequence[str] | None,
    most: int | None,
) -> list[NamedText]:
    """Return the texts that ``--input-path``, ``--text-name`` and ``--reference`` name.

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
    texts = [NamedText(name, read_text(path, most)) for name, path in zip(called, paths)]
    for reference, text, path in zip(references or (), texts, paths):
        lines = [line.text for line in read_text(reference, most, "--reference")]
        if len(lines) != len(text.lines):
            raise InferenceError(
                f"--reference {reference}: has {len(lines)} lines, and --input-path {path} "
                f"{len(text.lines)}; give files that match line by line"
            )
        text.references = lines
    return texts


def read_text(path: str, most: int | None, flag: str = "--input-path") -> list[Line]:
    """Return the text that ``flag`` names.

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
