"""A run of one system over a text: a line of ``runs.jsonl``."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=0, le=10**18)]
Figure = Annotated[float, Meta(ge=0, le=1e18)]


class SentenceColumns(msgspec.Struct, forbid_unknown_fields=True):
    """What is known of every sentence, in the order of the text: lists of one length, or empty.

    Stock search and CTranslate2 tell nothing of their steps.
    """

    line: list[Count]
    """Its number in the text, from 1."""
    seconds: list[Figure]
    """Seconds of decoding its batch: at batch 1 its own, else shared with the rest of the batch."""
    steps: list[Annotated[int, Meta(ge=1)]] = []
    drafted_tokens: list[Count] = []
    verified_tokens: list[Count] = []
    accepted_tokens: list[Count] = []
    committed_tokens: list[Count] = []
    """EOS included."""
    accepted_by_step: list[list[Count]] = []
    """How many drafted tokens each step accepted; where there is an output."""
    output: list[str] = []
    """Its translation; where it is the same in every round, only in round 1."""

    def __post_init__(self) -> None:
        """
        Raises:
            ValueError: the columns are not of one length.
        """
        columns = (getattr(self, name) for name in self.__struct_fields__)
        if len({len(column) for column in columns if column} | {len(self.line)}) > 1:
            raise ValueError("columns of different lengths")


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A system's way through a text. Times are of decoding alone.

    The counts and what follows from them are None where a system tells nothing of its steps.
    """

    system: str
    """Its label: name and threads."""
    text: str
    """Its name; empty of a text that is alone."""
    device: str
    batch: Count
    round: Count
    """From 1: a round is one run of every system on this text, at this batch size, one after
    another. Of drawn output it is the seed, of which every round has one of its own."""
    began: str
    """Date and time, UTC."""
    sentences: Annotated[int, Meta(ge=1)]
    """The number of lines with words."""
    seconds: Figure
    by_sentence: SentenceColumns
    engine: str
    """What ran the models."""
    precision: str
    """What was computed in."""
    memory: Count | None = None
    """Bytes: the most that the system's own process had had until then; of one that shares its
    process, the most that its tensors had of a GPU's memory; else None."""
    block_size: Count | None = None
    """k."""
    control_seconds: Figure | None = None
    """The part of the seconds that the controller's answers took."""
    committed_tokens: Count | None = None
    steps: Count | None = None
    drafted_tokens: Count | None = None
    verified_tokens: Count | None = None
    accepted_tokens: Count | None = None
    verifier_calls: Count | None = None
    drafter_calls: Count | None = None
    acceptance_length: Figure | None = None
    """Committed tokens a step, bonus token included."""
    acceptance_rate: Figure | None = None
    """Accepted per verified drafted token; 0 where none was verified."""
    verification_rate: Figure | None = None
    """Verifier calls per committed token."""
    discard_rate: Figure | None = None
    """Tokens drafted but not accepted, per committed token: those that were never verified too."""
    verified_discard_rate: Figure | None = None
    """Tokens verified but not accepted, per committed token. SpecDec++ verifies all that it drafts,
    so that its discard rate is both."""

    @property
    def milliseconds_a_sentence(self) -> float:
        """Milliseconds of decoding a sentence."""
        return 1000 * self.seconds / self.sentences

    @property
    def milliseconds_per_token(self) -> float | None:
        """Milliseconds of decoding a committed token, if these were counted."""
        if self.committed_tokens is None:
            return None
        return 1000 * self.seconds / max(self.committed_tokens, 1)

    @property
    def tokens_per_second(self) -> float | None:
        """Committed tokens a second of decoding, if these were counted."""
        if self.committed_tokens is None or not self.seconds:
            return None
        return self.committed_tokens / self.seconds

    @property
    def control_share(self) -> float | None:
        """How much of the seconds the controller's answers took, 0 to 1."""
        if self.control_seconds is None or not self.seconds:
            return None
        return self.control_seconds / self.seconds

    def to_json(self) -> bytes:
        """Return the line, without a line feed."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, line: bytes) -> Run:
        """
        Raises:
            ValueError: this is no such line.
        """
        try:
            return msgspec.json.decode(line, type=cls)
        except RecursionError as error:
            raise ValueError(str(error)) from error


def in_order(columns: dict[str, list[Any]], line: list[int]) -> SentenceColumns:
    """Columns in the order of the text.

    Args:
        columns: in the order of decoding.
        line: the numbers of the lines, in that order.
    """
    order = sorted(range(len(line)), key=line.__getitem__)
    columns = {"line": line, **columns}
    return SentenceColumns(**{name: [c[i] for i in order] for name, c in columns.items() if c})
