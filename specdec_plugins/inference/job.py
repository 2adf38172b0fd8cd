"""A job that translates a corpus, and can be stopped anywhere and gone on with.

Its folder, ``OUTPUT/.job``, holds ``job.json``, by which a resumed run knows that it is the same
job (input, models, settings), and the shards until all are done. Then those of each input file are
put together, in order, as a file of the same name.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import specdec_plugins
from specdec_plugins.inference.corpus import FOLDER, CorpusFile, Shard, shard_folder, write_whole
from specdec_plugins.inference.paths import model_files
from specdec_plugins.inference.settings import InferenceError, Settings


def describe_job(
    corpus: Sequence[CorpusFile], settings: Settings, seed: int, shard_lines: int
) -> dict[str, Any]:
    """All that the output depends on; files by their content, wherever they are."""
    return {
        "specdec_plugins": specdec_plugins.__version__,
        "input": {file.name: {"lines": file.lines, "sha256": file.digest} for file in corpus},
        **describe_settings(settings, seed),
        "shard_lines": shard_lines,
    }


def describe_settings(settings: Settings, seed: int) -> dict[str, Any]:
    """``models``: the digests of the files that settings name; ``settings``: all else."""
    described = asdict(settings)
    models = model_files(settings)
    options = described.pop("encoder_options")
    for name in ("data", "path", "ar_path"):
        del described[name]
    if "acceptance_head" in models:
        del described["controller"]["acceptance_head"]
    return {
        "models": {name: file_digest(path) for name, path in models.items()},
        "settings": {
            **described,
            "encoder_options": {k: v for k, v in options.items() if k not in models},
            "seed": seed,
        },
    }


def file_digest(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file.

    Raises:
        InferenceError: it cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise InferenceError(
            f"{path}: cannot be read ({error.strerror}); check the path"
        ) from error
    return digest.hexdigest()


class Job:
    """The output folder of a job; one run at a time has it, from entering to leaving."""

    def __init__(
        self, output: Path, corpus: Sequence[CorpusFile], description: dict[str, Any]
    ) -> None:
        self.output = output
        self.corpus = corpus
        # As it is when read again: tuples are lists, keys are strings.
        self.description = json.loads(json.dumps(description))
        self._file: IO[str] | None = None

    def __enter__(self) -> Job:
        """Begin the job, or go on with it.

        Raises:
            InferenceError: the folder cannot be written to, or holds something else.
        """
        path = self.output / FOLDER / "job.json"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "a+", encoding="utf-8")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.__exit__()
            raise InferenceError(f"{self.output}: another run is at work there") from error
        except OSError as error:
            fault = f"cannot be written to ({error.strerror}); name a folder that can"
            raise InferenceError(f"--output-path {self.output}: {fault}") from error
        try:
            self._begin_or_go_on(self._file)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file is not None:
            self._file.close()

    def _begin_or_go_on(self, file: IO[str]) -> None:
        file.seek(0)
        try:
            before = json.loads(file.read() or "null")
        except ValueError:
            before = None  # killed before it was whole, and thus before any shard was
        if before is None:
            for name in (file.name for file in self.corpus):
                if (self.output / name).exists():
                    raise InferenceError(
                        f"--output-path {self.output}: {name} is there already; name another folder"
                    )
            file.truncate(0)
            json.dump(self.description, file, indent=1, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
        elif other := list(differences(before, self.description)):
            more = f" and {len(other) - 3} more" if len(other) > 3 else ""
            raise InferenceError(
                f"--output-path {self.output}: was begun with other {', '.join(other[:3])}{more}; "
                "give what it was begun with, or another folder"
            )

    def pending(self) -> list[Shard]:
        """The shards that are still to be translated."""
        return [
            shard
            for file in self.corpus
            if not (self.output / file.name).exists()
            for shard in file.shards
            if not shard.done
        ]

    def finish(self) -> None:
        """Put the shards together, and remove them.

        Raises:
            InferenceError: a shard is not what it must be, or a file cannot be written.
        """
        for index, file in enumerate(self.corpus):
            target = self.output / file.name
            if not target.exists():
                whole = shard_folder(self.output, index) / "whole.txt"
                write_whole(whole, _checked(file.shards))
                try:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(whole, target)
                except OSError as error:
                    fault = f"cannot be written ({error.strerror})"
                    raise InferenceError(f"{target}: {fault}") from error
        for folder in (self.output / FOLDER).iterdir():
            if folder.is_dir():
                shutil.rmtree(folder)


def _checked(shards: Iterable[Shard]) -> Iterator[bytes]:
    """The translations of shards, each of as many lines as it must have."""
    for shard in shards:
        data = Path(shard.output).read_bytes()
        if data.count(b"\n") != shard.lines or not data.endswith(b"\n"):
            raise InferenceError(
                f"{shard.output}: is damaged (it must have {shard.lines} lines); remove it, and "
                "run the same command again"
            )
        yield data


def differences(one: Any, other: Any, name: str = "") -> Iterator[str]:
    """Where two descriptions differ, as dotted names."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys([*one, *other]):
            yield from differences(one.get(key), other.get(key), f"{name}.{key}" if name else key)
    elif one != other:
        yield name
