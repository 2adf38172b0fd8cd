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

    @property
    def milliseconds(self) -> float:
        """Milliseconds a sentence."""
        return 1000 * self.seconds / len(self.sentences["line"])

    @property
    def tokens_per_second(self) -> float | None:
        """Committed tokens a second."""
        return _ratio(self.committed_tokens, self.seconds)

    @property
    def acceptance_length(self) -> float | None:
        """Committed tokens a step, bonus token included."""
        return None if self.verified_tokens is None else _ratio(self.committed_tokens, self.steps)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted per verified token; 0 where none was verified."""
        return _ratio(self.accepted_tokens, self.verified_tokens)

    @property
    def verification_rate(self) -> float | None:
        """Verifier calls per committed token."""
        return _ratio(self.verifier_calls, self.committed_tokens)

    @property
    def discard_rate(self) -> float | None:
        """Tokens drafted but not accepted, verified or not, per committed token."""
        return _discarded(self.drafted_tokens, self.accepted_tokens, self.committed_tokens)

    @property
    def verified_discard_rate(self) -> float | None:
        """Tokens verified but not accepted, per committed token: SpecDec++'s discard rate."""
        return _discarded(self.verified_tokens, self.accepted_tokens, self.committed_tokens)

    @property
    def control_share(self) -> float | None:
        """The controller's part of the time, 0 to 1."""
        return _ratio(self.control_seconds, self.seconds)


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or whole is None else part / max(whole, 1e-9) if part else 0.0


def _discarded(drafted: int | None, accepted: int | None, committed: int | None) -> float | None:
    if drafted is None or accepted is None:
        return None
    return _ratio(drafted - accepted, committed)


def read_runs(path: Path) -> list[Run]:
    """Return the complete lines of a file of runs; none if there is no file.

    Raises:
        InferenceError: the file cannot be read, or a line is no run.
    """
    if not path.exists():
        return []
    with explained(f"{path}: cannot be read", "check its permissions"):
        *lines, _ = path.read_bytes().split(b"\n")
    try:
        return [msgspec.json.decode(line, type=Run) for line in lines]
    except (ValueError, RecursionError) as error:
        raise InferenceError(f"{path}: holds a line that is no run ({error})") from error
