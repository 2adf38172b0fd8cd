"""A job that translates a corpus, and can be stopped anywhere and gone on with.

Its folder, ``OUTPUT/.job``, holds a lock, ``job.json``, by which a resumed run knows that it is the
same job (input, models, settings), and the shards until all are done. Then those of each input file
are put together, in order, as a file of the same name.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.json_object import JsonObject
from specdec_plugins.files.output import write_whole
from specdec_plugins.files.work_folder import WorkFolder
from specdec_plugins.inference.run_files import describe_settings
from specdec_plugins.inference.settings import Settings
from specdec_plugins.jobs.corpus import FOLDER, CorpusFile, Shard, shard_folder


def describe_job(
    corpus: Sequence[CorpusFile], settings: Settings, seed: int, shard_lines: int
) -> JsonObject:
    """All that the output depends on; files by their content, wherever they are."""
    return {
        "input": {file.name: {"lines": file.lines, "sha256": file.digest} for file in corpus},
        **describe_settings(settings, seed),
        "shard_lines": shard_lines,
    }


class Job(WorkFolder):
    """The output folder of a job; one run at a time has it, from entering to leaving."""

    def __init__(self, output: Path, corpus: Sequence[CorpusFile], description: JsonObject) -> None:
        super().__init__(output, output / FOLDER, "job.json", description)
        self.corpus = corpus

    def go_on(self) -> None:
        """Begin the job, or go on with it.

        Raises:
            InferenceError: the folder holds something else.
        """
        if self.is_begun():
            return
        for file in self.corpus:
            if (self.output / file.name).exists():
                raise InferenceError(
                    f"--output-path {self.output}: {file.name} is there already; name another "
                    "folder"
                )
        folder = self.output / FOLDER
        if any(path.is_dir() for path in folder.iterdir()):
            raise InferenceError(
                f"--output-path {self.output}: {folder} holds shards, and no job.json that says "
                "what they were made of; remove that folder, or name another one"
            )
        self.begin()

    def pending(self) -> list[Shard]:
        """Return the shards that are still to be translated."""
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
                folder = shard_folder(self.output, index)
                write_whole(target, _checked(file.shards), partial=folder)
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
