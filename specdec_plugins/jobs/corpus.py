"""The job of translating a large corpus in shards: some lines of one input file each.

The folder ``OUTPUT/.job`` holds a lock, ``job.json``, by which a resumed run knows that it is the
same job (input, models, settings), and the shards until all are done. A shard is written whole or
not at all. Then those of each input file are put together as a file of the same name.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NoReturn

from fairseq import utils

from specdec_plugins.files.errors import InferenceError, explained
from specdec_plugins.files.lines import InputLines
from specdec_plugins.files.output import JsonObject, write_whole
from specdec_plugins.inference.report import describe_settings
from specdec_plugins.inference.settings import Settings
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
    drafts: str | None = None
    """The file of drafts for its file's lines."""

    @property
    def done(self) -> bool:
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


def find_files(path: Path) -> tuple[dict[str, Path], list[str]]:
    """Return the file itself, or the ordinary files in a folder and below by name, and the rest.

    Symbolic links are followed, but not to a folder that they are in. The rest is hidden files, and
    pipes and the like.
    """
    if path.is_file():
        return {path.name: path}, []
    files: list[Path] = []
    rest: list[str] = []
    for name, folders, names in os.walk(path, followlinks=True, onerror=_refuse):
        folder = Path(name)
        within = [above.resolve() for above in (folder, *folder.parents)]
        entered: list[Path] = []
        for item in [folder / name for name in (*folders, *names)]:
            is_folder = item.is_dir() and item.resolve() not in within
            if item.name.startswith(".") or not (is_folder or item.is_file()):
                rest.append(item.relative_to(path).as_posix())
            else:
                (entered if is_folder else files).append(item)
        folders[:] = [item.name for item in entered]
    if not files:
        raise InferenceError(f"--input-path {path}: holds no files; put text files there")
    return {item.relative_to(path).as_posix(): item for item in sorted(files)}, rest


def _refuse(error: OSError) -> NoReturn:
    raise InferenceError(f"--input-path {error.filename}: cannot be read ({error.strerror})")


def read_corpus(
    files: dict[str, Path], output: Path, shard_lines: int, drafts: str | None = None
) -> list[CorpusFile]:
    """Divide the files into shards of ``shard_lines`` lines; the last of each file may have fewer.

    Args:
        drafts: a folder of files of the same names.

    Raises:
        InferenceError: a file cannot be read, or is not UTF-8.
    """
    corpus: list[CorpusFile] = []
    number = 0
    for index, (name, path) in enumerate(files.items()):
        shards: list[Shard] = []
        whole = hashlib.sha256()
        drafted = None if drafts is None else os.path.join(drafts, name)
        if drafted is not None and not os.path.isfile(drafted):
            raise InferenceError(f"--drafts {drafted}: no such file")
        start = first_line = 0
        with explained(f"--input-path {path}: cannot be read"), open(path, "rb") as file:
            while lines := list(islice(file, shard_lines)):
                data = b"".join(lines)
                try:
                    data.decode("utf-8")
                except UnicodeDecodeError as error:
                    line = first_line + data.count(b"\n", 0, error.start) + 1
                    fault = f"{path}: line {line} is not UTF-8 ({error.reason})"
                    raise InferenceError(f"{fault}; convert the file (iconv)") from error
                whole.update(data)
                made = output / FOLDER / f"{index:06d}" / f"{len(shards):09d}.txt"
                digest = hashlib.sha256(data).hexdigest()
                about = (number, start, len(data), first_line, len(lines), digest)
                shards.append(Shard(str(path), str(made), *about, drafted))
                number, start, first_line = number + 1, start + len(data), first_line + len(lines)
        corpus.append(CorpusFile(name, tuple(shards), whole.hexdigest()))
    return corpus


def describe_job(
    corpus: Sequence[CorpusFile], settings: Settings, seed: int, shard_lines: int
) -> JsonObject:
    """Return all that the output depends on; files by their content, wherever they are."""
    return {
        "input": {file.name: {"lines": file.lines, "sha256": file.digest} for file in corpus},
        **describe_settings(settings, seed),
        "shard_lines": shard_lines,
    }


def pending(corpus: Sequence[CorpusFile], output: Path) -> list[Shard]:
    """Return the shards that are still to be translated."""
    files = [file for file in corpus if not (output / file.name).exists()]
    return [shard for file in files for shard in file.shards if not shard.done]


def finish(corpus: Sequence[CorpusFile], output: Path) -> None:
    """Put the shards together, and remove them."""
    for file in corpus:
        if not (output / file.name).exists():
            write_whole(output / file.name, _checked(file.shards))
    for folder in (output / FOLDER).iterdir():
        if folder.is_dir():
            shutil.rmtree(folder)


def _checked(shards: Sequence[Shard]) -> Iterator[bytes]:
    """Yield the translations of shards, each of as many lines as it must have."""
    for shard in shards:
        data = Path(shard.output).read_bytes()
        if data.count(b"\n") != shard.lines or not data.endswith(b"\n"):
            raise InferenceError(
                f"{shard.output}: is damaged (it must have {shard.lines} lines); remove it, and "
                "run the same command again"
            )
        yield data


def translate_shard(translator: Translator, shard: Shard, seed: int) -> None:
    """Write the translation of a shard, whole or not at all."""
    with explained(f"{shard.source}: cannot be read"), open(shard.source, "rb") as file:
        file.seek(shard.start)
        data = file.read(shard.size)
    if hashlib.sha256(data).hexdigest() != shard.digest:
        raise InferenceError(f"{shard.source}: has changed since this run began; begin a new job")
    # Each shard's own, whichever worker has it: for search that samples.
    utils.set_torch_seed(seed + shard.number)
    lines = InputLines(io.BytesIO(data), shard.source)
    lines.number = shard.first_line
    with nullcontext() if shard.drafts is None else InputLines.open(shard.drafts) as drafts:
        if drafts is not None:
            lines.drafts = drafts
            deque(islice(drafts, shard.first_line), 0)
        translations = translator.translate(lines)
        write_whole(Path(shard.output), (f"{line.text}\n".encode() for line in translations))
        lines.check()
