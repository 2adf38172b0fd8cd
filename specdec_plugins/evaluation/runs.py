"""Timed runs of systems over texts: lines of ``runs.jsonl``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from specdec_plugins.files.errors import InferenceError, explained


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One run of a system over a text. Times are of decoding alone.

    Counts are None where a system does not tell its steps. ``sentences`` holds a column for each
    known figure, in the order of the text: ``line`` and ``seconds`` (of the sentence's batch), and
    as far as they are known ``steps``, counts of tokens, ``accepted_by_step`` and ``output``.
    """

    system: str
    text: str
    threads: int
    batch: int
    round: int
    """From 1; the seed of drawn output."""
    began: str
    """Date and time, UTC."""
    engine: str
    precision: str
    seconds: float
    sentences: dict[str, list[Any]]
    memory: int | None = None
    """Bytes: the most that the process had, or on a GPU its tensors."""
    block_size: int | None = None
    control_seconds: float | None = None
    """The part of the seconds that the controller took."""
    committed_tokens: int | None = None
    steps: int | None = None
    drafted_tokens: int | None = None
    verified_tokens: int | None = None
    accepted_tokens: int | None = None
    verifier_calls: int | None = None
    drafter_calls: int | None = None

    def figures(self) -> dict[str, float]:
        """Return the time of a sentence and all rates that are known.

        ``acceptance_length`` has the bonus token included. ``discard_rate`` is of drafted tokens,
        ``verified_discard_rate`` (SpecDec++'s) of verified ones, each per committed token.
        """
        found = {"milliseconds": 1000 * self.seconds / len(self.sentences["line"])}
        if self.memory is not None:
            found["memory"] = self.memory
        if self.committed_tokens:
            found["tokens_per_second"] = self.committed_tokens / max(self.seconds, 1e-9)
            found["control_share"] = (self.control_seconds or 0) / max(self.seconds, 1e-9)
            found["verification_rate"] = (self.verifier_calls or 0) / self.committed_tokens
        if self.committed_tokens and self.verified_tokens is not None:
            accepted, drafted = self.accepted_tokens or 0, self.drafted_tokens or 0
            unwanted = self.verified_tokens - accepted
            found["acceptance_length"] = self.committed_tokens / (self.steps or 1)
            found["acceptance_rate"] = accepted / max(self.verified_tokens, 1)
            found["discard_rate"] = (drafted - accepted) / self.committed_tokens
            found["verified_discard_rate"] = unwanted / self.committed_tokens
        return found


def read_runs(path: Path) -> list[Run]:
    """Return the complete lines of a file of runs; none if there is no file."""
    if not path.exists():
        return []
    with explained(f"{path}: cannot be read", "check its permissions"):
        *lines, _ = path.read_bytes().split(b"\n")
    try:
        return [msgspec.json.decode(line, type=Run) for line in lines]
    except (ValueError, RecursionError) as error:
        raise InferenceError(f"{path}: holds a line that is no run ({error})") from error
