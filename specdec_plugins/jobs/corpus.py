"""The lines of a large corpus, in shards: a fixed number of lines of one input file each.

The translation of a shard is written under a temporary name and renamed when it is whole, so a
shard is either done or not begun; a shard that two workers translate is still there once.

Lines are those of :mod:`specdec_plugins.inference.text`, but for one thing: bytes that are no UTF-8
are found before anything is translated.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO

from fairseq import utils

from specdec_plugins.files.errors import InferenceError, explained
from specdec_plugins.files.input import InputLines
from specdec_plugins.files.output import write_whole
from specdec_plugins.inference.translator import Translator

FOLDER = ".job"


@dataclass(frozen=True)
class Shard:
    """Consecutive lines of an input file."""

    source: str
    """The input file."""
    output: str
    """The file of its translation."""
    number: int
    """Among all shards of the job, from 0."""
    start: int
    """Its first byte."""
    size: int
    """Bytes."""
    first_line: int
    """Lines before it in its file."""
    lines: int
    digest: str
    """SHA-256 of its bytes."""

    @property
    def done(self) -> bool:
        """Whether its translation is there."""
        return os.path.exists(self.output)


@dataclass(frozen=True)
class CorpusFile:
    """An input file, read through once."""

    name: str
    """Its path in the input folder, which its translation has in the output folder."""
    shards: tuple[Shard, ...]
    digest: str
    """SHA-256 of its bytes."""

    @property
    def lines(self) -> int:
        """All of its lines, a last one without a line feed included."""
        return sum(shard.lines for shard in self.shards)


@dataclass
class CorpusPaths:
    """What there is to translate, and what of the input folder is not translated."""

    files: dict[str, Path] = field(default_factory=dict)
    """The input files by name, in the order of their paths."""
    links: list[Path] = field(default_factory=list)
    """Symbolic links to folders, which are followed."""
    passed_over: list[str] = field(default_factory=list)
    """Names, each with the reason."""


def find_files(path: Path) -> CorpusPaths:
    """Return the file itself, or what is in a folder and below: the ordinary files but hidden ones.

    Symbolic links are followed, as ``find -L`` does it: but not to a folder that they are in.

    Raises:
        InferenceError: there are none, or a folder cannot be read.
    """
    if path.is_file():
        return CorpusPaths({path.name: path})
    if not path.is_dir():
        raise InferenceError(f"--input-path {path}: no such file or folder; check the path")
    found = CorpusPaths()
    _look_into(path, path, (), found)
    found.files = dict(sorted(found.files.items(), key=lambda file: Path(file[0])))
    if not found.files:
        raise InferenceError(f"--input-path {path}: holds no files; put text files there")
    return found


def _look_into(top: Path, folder: Path, above: tuple[Path, ...], found: CorpusPaths) -> None:
    """Add what is in a folder, and below it.

    Args:
        above: the real paths of the folders that it is in.
    """
    with explained(f"--input-path {folder}: cannot be read", "check its permissions"):
        entries = sorted(folder.iterdir())
    within = (*above, folder.resolve())
    for entry in entries:
        name = entry.relative_to(top).as_posix()
        if entry.name.startswith("."):
            found.passed_over.append(f"{name} (hidden)")
        elif entry.is_file():
            found.files[name] = entry
        elif not entry.is_dir():
            kind = "a link to nothing" if entry.is_symlink() else "no ordinary file"
            found.passed_over.append(f"{name} ({kind})")
        elif entry.resolve() in within:
            found.passed_over.append(f"{name} (a link to a folder that it is in)")
        else:
            if entry.is_symlink():
                found.links.append(entry)
            _look_into(top, entry, within, found)


def read_corpus(files: dict[str, Path], output: Path, shard_lines: int) -> list[CorpusFile]:
    """Divide the files into shards of ``shard_lines`` lines, the last of each file may have fewer.

    Raises:
        InferenceError: a file cannot be read, or is not UTF-8.
    """
    corpus: list[CorpusFile] = []
    number = 0
    for index, (name, path) in enumerate(files.items()):
        folder = shard_folder(output, index)
        whole = hashlib.sha256()
        with (
            explained(f"--input-path {path}: cannot be read", "check its permissions"),
            open(path, "rb") as file,
        ):
            shards = tuple(_divide(file, path, folder, number, shard_lines, whole))
        corpus.append(CorpusFile(name, shards, whole.hexdigest()))
        number += len(shards)
    return corpus


def shard_folder(output: Path, index: int) -> Path:
    """Return where the shards of the input file ``index`` are."""
    return output / FOLDER / f"{index:06d}"


def _divide(
    file: IO[bytes], path: Path, folder: Path, number: int, shard_lines: int, whole: hashlib._Hash
) -> Iterator[Shard]:
    start = first_line = 0
    while lines := list(islice(file, shard_lines)):
        data = b"".join(lines)
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = first_line + data.count(b"\n", 0, error.start) + 1
            raise InferenceError(
                f"{path}: line {line} is not UTF-8 ({error.reason}); convert the file (iconv)"
            ) from None
        output = folder / f"{first_line // shard_lines:09d}.txt"
        whole.update(data)
        digest = hashlib.sha256(data).hexdigest()
        yield Shard(
            str(path), str(output), number, start, len(data), first_line, len(lines), digest
        )
        number, start, first_line = number + 1, start + len(data), first_line + len(lines)


def translate_shard(translator: Translator, shard: Shard, seed: int) -> None:
    """Write the translation of a shard, whole or not at all.

    Raises:
        InferenceError: its input is not what it was, or its output cannot be written.
    """
    with explained(f"{shard.source}: cannot be read"), open(shard.source, "rb") as file:
        file.seek(shard.start)
        data = file.read(shard.size)
    if hashlib.sha256(data).hexdigest() != shard.digest:
        raise InferenceError(f"{shard.source}: has changed since this run began; begin a new job")
    # Each shard's own, whichever worker has it: for search that samples.
    utils.set_torch_seed(seed + shard.number)
    lines = InputLines(io.BytesIO(data), shard.source)
    lines.number = shard.first_line
    translations = translator.translate(lines)
    write_whole(Path(shard.output), (f"{line.text}\n".encode() for line in translations))
