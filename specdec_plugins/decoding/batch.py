"""The rows that are being decoded, and their hypotheses. No fairseq in here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import ge, or_, sub
from typing import ClassVar

from torch import Tensor

from specdec_plugins.decoding import kernels
from specdec_plugins.decoding.acceptance import Accepted
from specdec_plugins.decoding.drafts import Draft
from specdec_plugins.decoding.step_result import StepResult
from specdec_plugins.decoding.target_prefix import BEGINS, FREE, STOPS, read_prefix, row_values
from specdec_plugins.host.fairseq_types import EncoderOut, NetInput
from specdec_plugins.models.rows import select_rows


class Rows:
    """The unfinished rows of a batch, on the host."""

    #: The lists that have a value for each row.
    COLUMNS: ClassVar[tuple[str, ...]] = (
        *("rows", "max_lengths", "tokens", "scores", "lengths", "last"),
    )

    def __init__(self, max_lengths: list[int], eos: int) -> None:
        """``max_lengths``: the largest number of tokens of each row before EOS."""
        self._eos = eos
        #: The index of each row in the batch as it began.
        self.rows = list(range(len(max_lengths)))
        self.max_lengths = max_lengths
        #: Committed tokens, forced ones included.
        self.tokens: list[list[int]] = [[] for _ in self.rows]
        #: Their log-probabilities.
        self.scores: list[list[float]] = [[] for _ in self.rows]
        #: The number of them.
        self.lengths = [0] * len(self.rows)
        #: The last of them, or the token before the first one: EOS by default.
        self.last = [eos] * len(self.rows)

    @property
    def room(self) -> list[int]:
        """The number of tokens that each row may still have before EOS."""
        return list(map(sub, self.max_lengths, self.lengths))

    def append(
        self,
        accepted: Accepted,
        scores: list[list[float]],
        drafted: list[int],
        called: Sequence[int],
    ) -> StepResult:
        """Append what was accepted to every row, with the tokens' log-probabilities ``scores``."""
        # An EOS that the length limit forces was not drafted.
        counts = list(map(min, accepted.accepted, self.room))
        for tokens, logs, count, new, log in zip(
            self.tokens, self.scores, accepted.committed, accepted.tokens.tolist(), scores
        ):
            tokens += new[:count]
            logs += log[:count]
        self.lengths = [len(tokens) for tokens in self.tokens]
        # A target prefix may be empty.
        self.last = [tokens[-1] if tokens else last for tokens, last in zip(self.tokens, self.last)]
        return StepResult(
            tokens=accepted.tokens,
            sources=accepted.sources,
            committed=accepted.committed,
            accepted=counts,
            verified=accepted.verified,
            rows=self.rows,
            drafted=drafted,
            called=called,
            lengths=self.lengths,
            last=self.last,
            finished=self._ended(),
            limited=[length > limit for length, limit in zip(self.lengths, self.max_lengths)],
        )

    def _ended(self) -> list[bool]:
        """Return which rows have ended."""
        return [token == self._eos for token in self.last]

    def select(self, rows: list[int]) -> None:
        """Go on with ``rows`` only, in this order."""
        for name in self.COLUMNS:
            values = getattr(self, name)
            setattr(self, name, [values[i] for i in rows])


class Batch(Rows):
    """The rows of the loop, with data on the models' device."""

    COLUMNS = (*Rows.COLUMNS, "stops", "forced", "free_from", "uncached", "draft_lengths")

    def __init__(
        self,
        net_input: NetInput,
        max_lengths: list[int],
        pad: int,
        eos: int,
        longest_draft: int,
    ) -> None:
        """``longest_draft``: in slots or nodes. Forced tokens are not committed yet."""
        tokens, self.forced, limits = read_prefix(net_input, max_lengths, pad, eos)
        super().__init__(limits, eos)
        self.last = row_values(net_input, BEGINS, self.last)
        #: The lengths at which rows end, whatever their last token.
        self.stops = row_values(net_input, STOPS, [limit + 1 for limit in limits])
        self.net_input = net_input
        self.device = tokens.device
        self.encoder_out: EncoderOut | None = None
        #: Returns ``(layers, 2, rows, heads, source, dim)`` the verifier's keys and values of the
        #: sources of :attr:`rows`.
        self.memory: Callable[[], Tensor] | None = None
        #: ``(rows, n)`` forced tokens, :attr:`forced` of each row, then padding.
        self.prefix = tokens[:, : max(self.forced)]
        #: Tokens that a row has room for: its last step may begin at its maximum length and write a
        #: whole draft.
        self.capacity = max(self.max_lengths) + 2 * (longest_draft + 1)
        #: The positions of each row before which there is no minimum length.
        self.free_from = row_values(net_input, FREE, [tokens.size(1)] * len(self.rows))
        #: ``(rows, capacity, channels)`` the verifier's states for the committed tokens, from index
        #: 0, for a drafter that reads them; None before the first step.
        self.features: Tensor | None = None
        #: Tokens committed since the last pass of a causal drafter, which has not cached them.
        self.uncached = [0] * len(self.rows)
        #: Draft lengths of the next step.
        self.draft_lengths = [0] * len(self.rows)
        self._on_device: Tensor | None = None

    @property
    def on_device(self) -> Tensor:
        """``(2, rows)`` lengths and their limits, copied at the first use after a change."""
        if self._on_device is None:
            self._on_device = kernels.to_device([self.lengths, self.max_lengths], self.device)
        return self._on_device

    def forced_tokens(self) -> Accepted:
        """Return the forced tokens as what a step commits, none of which was drafted."""
        sources = kernels.indices(self.prefix.size(1), self.device).expand_as(self.prefix)
        none = [0] * len(self.rows)
        return Accepted(self.prefix, sources, self.forced, none, none)

    def commit(
        self, draft: Draft, accepted: Accepted, scores: Tensor, states: Tensor | None
    ) -> StepResult:
        """Append what was accepted of a draft, with the tokens' log-probabilities ``(rows, n)`` and
        the verifier's states ``(rows, slots, channels)`` for a drafter that reads them."""
        if states is not None:
            if self.features is None:
                self.features = states.new_empty(len(self.rows), self.capacity, states.size(-1))
            # Rows of fewer tokens copy more behind them, which nobody reads.
            slots = kernels.indices(max(accepted.committed), self.device)
            row = kernels.indices(len(self.rows), self.device)[:, None]
            positions = self.on_device[0, :, None] + slots
            self.features[row, positions] = states[row, accepted.sources[:, : len(slots)]]
        called = draft.called
        self.uncached = [
            new if cached else before + new
            for cached, before, new in zip(called, self.uncached, accepted.committed)
        ]
        self._on_device = None
        return self.append(accepted, scores.tolist(), draft.drafted, called)

    def plan(self, draft_lengths: list[int]) -> None:
        """Set the draft lengths of the next step."""
        self.draft_lengths = draft_lengths

    def _ended(self) -> list[bool]:
        stopped = map(ge, self.lengths, self.stops)
        return list(map(or_, super()._ended(), stopped))

    def select(self, rows: list[int]) -> None:
        super().select(rows)
        if self.features is not None:
            self.features = select_rows(self.features, rows)
        self._on_device = None


@dataclass(frozen=True)
class Prefixes:
    """The prefixes that blocks are to follow, one for each row."""

    #: The prefixes of all rows of the batch; there may be other tokens after them.
    tokens: Sequence[Sequence[int]]
    #: The number of last tokens of each prefix that the drafter has not cached; all of them if it
    #: is bidirectional.
    new: list[int]
    #: Prefix lengths.
    lengths: list[int]
    #: The token before each block.
    last: Sequence[int]
    #: ``(rows, n, channels)`` the verifier's states for the prefixes of all rows of the batch, for
    #: drafters that read them.
    features: Tensor | None
    #: Slots of each row's block, at least 1; None: all.
    slots: list[int] | None = None
    #: The rows of the batch; None: all.
    rows: list[int] | None = None

    @property
    def cached(self) -> list[int]:
        """The number of tokens of each prefix that the drafter has cached."""
        return [length - new for length, new in zip(self.lengths, self.new)]


def prefixes_of(batch: Batch, causal: bool, slots: int, rows: list[int] | None = None) -> Prefixes:
    """Return the prefixes of a batch, which blocks of ``slots`` are to follow.

    Args:
        causal: the drafter has cached earlier tokens.
        rows: those to draft for; None for all.
    """
    new = batch.uncached if causal else batch.lengths
    lengths = batch.lengths
    last = batch.last
    blocks = [min(max(length, 1), slots) for length in batch.draft_lengths]
    if rows is not None:
        new, lengths, last, blocks = (
            [values[i] for i in rows] for values in (new, lengths, last, blocks)
        )
    return Prefixes(batch.tokens, new, lengths, last, batch.features, blocks, rows)
