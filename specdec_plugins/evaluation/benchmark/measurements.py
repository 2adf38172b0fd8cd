"""A timed run of one system, as a benchmark keeps it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from specdec_plugins.evaluation.folder import RunFolder
from specdec_plugins.files.json_object import JsonObject

DESCRIPTION = "benchmark.json"

Count = Annotated[int, Meta(ge=0)]
Figure = Annotated[float, Meta(ge=0)]


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A system's way through the text: a line of ``runs.jsonl``."""

    system: str
    """Its label: name and threads."""
    batch: Count
    round: Count
    """From 1: a round is one run of every system at this batch size, one after another."""
    began: str
    """Date and time, UTC."""
    sentences: Annotated[int, Meta(ge=1)]
    seconds: Annotated[float, Meta(gt=0)]
    """Of decoding alone."""
    peak_memory: Count
    """Bytes: the most that its process has had in memory until then."""
    output: list[str]
    """Its translations, in the order of the text; only in round 1."""
    acceptance_length: Figure | None = None
    """Committed tokens a step, bonus token included; None without a drafter, as the next three."""
    verification_rate: Figure | None = None
    """Verifier calls per committed token."""
    discard_rate: Figure | None = None
    """Tokens drafted but not accepted, per committed token."""
    block_size: Count | None = None
    """k."""

    def to_json(self) -> str:
        """The line, without a line feed."""
        return msgspec.json.encode(self).decode("utf-8")

    @classmethod
    def from_json(cls, line: bytes) -> Measurement:
        """
        Raises:
            ValueError: this is no such line.
        """
        return msgspec.json.decode(line, type=cls)


class BenchmarkFolder(RunFolder[Measurement]):
    """Where a benchmark leaves its runs."""

    def __init__(self, path: Path, description: JsonObject) -> None:
        super().__init__(path, DESCRIPTION, description, Measurement.from_json)
