"""The job of translating a large corpus in shards: some lines of one input file each.

The folder ``OUTPUT/.job`` holds a lock, ``job.json``, by which a resumed run knows that it is the
same job (input, drafts, models, settings), and the shards until all are done. A shard is written
whole or not at all, and only by the models and from the lines that the job began with. Then those
of each input file are put together as a file of the same name.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from fairseq import utils

from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.lines import InputLines, check_drafts
from specdec_plugins.files.output import JsonObject, differing, file_digest, write_whole
from specdec_plugins.inference.report import describe_settings
from specdec_plugins.inference.settings import Settings
from specdec_plugins.inference.translator import Translator

FOLDER = ".job"
JOB = "job.json"
REMEDY = "put back the file, or name another output folder"


@dataclass(frozen=True)
class Shard:
    """Lines of the file ``source``, whose translation is the file ``output``."""

    source: str
    output: str
    #: Among all shards of the job, from 0.
    number: int
    #: Its first byte in the file.
    start: int
    #: Lines before it in the file.
    first_line: int
    lines: int
    #: The SHA-256 of its lines.
    digest: str
    #: The file of drafts for all lines of the file.
    drafts: str | None = None

    @property
    def done(self) -> bool:
        return os.path.exists(self.output)


#: The shards of each file by its path in the input folder, and in the output folder.
Corpus = Mapping[str, Sequence[Shard]]


def find_files(path: Path) -> tuple[dict[str, Path], list[str]]:
    """Return the file itself, or the ordinary files in a folder and below by name, and the rest.

    Links to files are followed. The rest is hidden files, links to folders, pipes and the like.
    """
    if path.is_file():
        return {path.name: path}, []
    files: dict[str, Path] = {}
    rest = list[str]()
    folders = [path]
    while folders:
        folder = folders.pop()
        for item in sorted(folder.iterdir()):
            name = item.relative_to(path).as_posix()
            hidden = item.name.startswith(".")
            if item.is_file() and not hidden:
                files[name] = item
            elif item.is_dir() and not item.is_symlink() and not hidden:
                folders.append(item)
            else:
                rest.append(name)
    if not files:
        raise InferenceError(f"--input-path {path}: holds no files; put text files there")
    return {name: files[name] for name in sorted(files)}, rest


def read_corpus(
    files: Mapping[str, Path], output: Path, shard_lines: int, drafts: str | None = None
) -> Corpus:
    """Divide files, and the files of ``drafts`` with their names, into shards of ``shard_lines``;
    the last shard of a file may have fewer lines."""
    corpus: dict[str, list[Shard]] = {}
    number = 0
    for index, (name, path) in enumerate(files.items()):
        shards = corpus[name] = []
        drafted = None
        if drafts is not None:
            drafted = os.path.join(drafts, name)
            if not os.path.isfile(drafted):
                raise InferenceError(f"--drafts {drafted}: no such file")
            check_drafts(drafted, str(path))
        start = first_line = 0
        with open(path, "rb") as file:
            while lines := list(islice(file, shard_lines)):
                data = b"".join(lines)
                try:
                    data.decode("utf-8")
                except UnicodeDecodeError as error:
                    line = first_line + data.count(b"\n", 0, error.start) + 1
                    raise InferenceError(
                        f"{path}: line {line} is not UTF-8; convert the file (iconv)"
                    ) from error
                shards.append(
                    Shard(
                        source=str(path),
                        output=str(output / FOLDER / f"{index:06d}" / f"{len(shards):09d}.txt"),
                        number=number,
                        start=start,
                        first_line=first_line,
                        lines=len(lines),
                        digest=hashlib.sha256(data).hexdigest(),
                        drafts=drafted,
                    )
                )
                number += 1
                start += len(data)
                first_line += len(lines)
    return corpus


def count_lines(shards: Sequence[Shard]) -> int:
    """Return the lines of some shards."""
    return sum(shard.lines for shard in shards)


def describe_job(
    files: Mapping[str, Path], settings: Settings, seed: int, shard_lines: int
) -> JsonObject:
    """Return all that the output depends on; files by their content, wherever they are."""
    drafts: dict[str, str] = {}
    if settings.drafts_path is not None:
        drafts = {name: file_digest(Path(settings.drafts_path, name)) for name in files}
    return {
        "input": {name: file_digest(path) for name, path in files.items()},
        "drafts": drafts,
        **describe_settings(settings, seed),
        "shard_lines": shard_lines,
    }


def check_models(shard: Shard, settings: Settings) -> None:
    """Raise if the models of a worker's settings are not those that the shard's job began with."""
    folder = Path(shard.output).parents[1]
    job = json.loads((folder / JOB).read_bytes())
    if other := differing(job["models"], describe_settings(settings)["models"]):
        raise InferenceError(f"{other}: was replaced while the corpus was translated; {REMEDY}")


def pending(corpus: Corpus, output: Path) -> list[Shard]:
    """Return the shards that are still to be translated."""
    missing = [shards for name, shards in corpus.items() if not (output / name).exists()]
    return [shard for shards in missing for shard in shards if not shard.done]


def finish(corpus: Corpus, output: Path) -> None:
    """Put the shards together, and remove them."""
    for name, shards in corpus.items():
        if not (output / name).exists():
            write_whole(output / name, (Path(shard.output).read_bytes() for shard in shards))
    for folder in (output / FOLDER).iterdir():
        if folder.is_dir():
            shutil.rmtree(folder)


def translate_shard(translator: Translator, shard: Shard, seed: int) -> None:
    """Write the translation of a shard, whole or not at all."""
    with open(shard.source, "rb") as file:
        file.seek(shard.start)
        data = b"".join(islice(file, shard.lines))
    if hashlib.sha256(data).hexdigest() != shard.digest:
        raise InferenceError(
            f"{shard.source}: was changed while it was translated (after line "
            f"{shard.first_line}); {REMEDY}"
        )
    # Each shard's own, whichever worker has it: for search that samples.
    utils.set_torch_seed(seed + shard.number)
    lines = InputLines(io.BytesIO(data), shard.source, shard.first_line)
    drafts = nullcontext() if shard.drafts is None else InputLines.open(shard.drafts)
    with drafts as lines.drafts:
        deque(islice(lines.drafts or (), shard.first_line), 0)
        outputs = (item.line.encode() + b"\n" for item in translator.translate(lines))
        write_whole(Path(shard.output), outputs)
        lines.check()
