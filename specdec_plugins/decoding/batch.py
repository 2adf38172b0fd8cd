"""The rows that are being decoded. No fairseq in here."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specdec_plugins.decoding.acceptance import Accepted
from specdec_plugins.decoding.append import Column, append
from specdec_plugins.decoding.drafts import Draft
from specdec_plugins.decoding.indices import told
from specdec_plugins.decoding.step_result import StepResult
from specdec_plugins.decoding.target_prefix import TargetPrefix
from specdec_plugins.host.fairseq_types import EncoderOut, NetInput
from specdec_plugins.models.rows import keep_rows


class RowCounts(NamedTuple):
    """Per row, on the device, ``(rows,)`` each: what the batch has as lists."""

    lengths: Tensor
    max_lengths: Tensor
    draft_lengths: Tensor


class Batch:
    """The rows still being decoded: tokens on the device, counts on the host."""

    def __init__(
        self,
        net_input: NetInput,
        encoder_out: EncoderOut | None,
        prefix: TargetPrefix,
        max_lengths: list[int],
        longest_draft: int,
        precision: torch.dtype,
    ) -> None:
        """Nothing is decoded yet, and nothing planned.

        Args:
            encoder_out: the verifier's, if its encoder was run.
            prefix: what the targets begin with; what it forces is not committed yet.
            max_lengths: most tokens of each row before EOS.
            longest_draft: in slots or nodes.
            precision: of scores.
        """
        source = net_input["src_tokens"]
        rows = len(source)
        self.net_input, self.encoder_out = net_input, encoder_out
        self.rows = list(range(rows))
        """Where each row stands in the batch as it began."""
        # A row's last step may start at its maximum length and write a whole draft after it.
        self.capacity = max(max_lengths) + 2 * (longest_draft + 1)
        """Tokens that a row has room for."""
        self.tokens = prefix.begins[:, None].repeat(1, self.capacity)
        """``(rows, capacity)`` EOS, or what stands for it, then the committed tokens, then
        whatever."""
        self.free_from = prefix.free_from
        """As of a target prefix."""
        self.scores = torch.zeros(rows, self.capacity, dtype=precision, device=source.device)
        """``(rows, capacity)`` log-probabilities of the committed tokens under the verifier."""
        self.last = self.tokens[:, 0]
        """``(rows,)`` the last committed token of each, what it begins with before the first."""
        self.features: Tensor | None = None
        """``(rows, capacity, channels)`` the verifier's states for the committed tokens, the first
        at 0, then whatever; only for a drafter that reads them, from the first step on."""
        self.lengths = [0] * rows
        """Committed tokens, forced ones among them."""
        self.max_lengths = max_lengths
        self.uncached = [0] * rows
        """Tokens committed since the drafter's last pass: if causal, it has not cached them."""
        self.draft_lengths = [0] * rows
        """Of the next step; see :meth:`plan`."""
        self._on_device: RowCounts | None = None

    @property
    def device(self) -> torch.device:
        """Where the tokens are."""
        return self.tokens.device

    @property
    def on_device(self) -> RowCounts:
        """The counts, copied to the device when they are asked for after a change."""
        if self._on_device is None:
            counts = [self.lengths, self.max_lengths, self.draft_lengths]
            self._on_device = RowCounts(*told(counts, self.device).unbind())
        return self._on_device

    def room(self, slots: int) -> list[int] | None:
        """How many tokens each row may still have before EOS; None if all have ``slots`` or more,
        which is mostly so."""
        room = [most - length for most, length in zip(self.max_lengths, self.lengths)]
        return room if min(room) < slots else None

    def commit(
        self,
        draft: Draft,
        accepted: Accepted,
        scores: Tensor,
        states: Tensor | None,
        verifier_called: bool,
    ) -> StepResult:
        """Append what was accepted of a draft.

        Args:
            scores: ``(rows, n)`` the accepted tokens' log-probabilities; n holds all that is
                committed.
            states: ``(rows, slots, channels)`` the verifier's, for a drafter that reads them.
            verifier_called: whether the verifier had a pass.
        """
        committed, count, finished, verified, last = accepted.on_host
        # Behind the EOS that every row begins with.
        columns = [Column(self.tokens, accepted.tokens, 1), Column(self.scores, scores, 1)]
        if states is not None:
            if self.features is None:
                self.features = states.new_empty(*self.tokens.shape, states.size(-1))
            columns.append(Column(self.features, states, sources=accepted.sources))
        append(columns, self.lengths, committed)
        self.last = accepted.counts[4]
        called = draft.called
        before = zip(called, self.uncached, committed)
        self.uncached = [n if cached else m + n for cached, m, n in before]
        self.lengths = [length + n for length, n in zip(self.lengths, committed)]
        self._on_device = None
        return StepResult(
            rows=self.rows,
            drafted=draft.drafted,
            called=called,
            verified=verified,
            accepted=count,
            committed=committed,
            finished=[bool(end) for end in finished],
            last=last,
            lengths=self.lengths,
            limited=[length > most for length, most in zip(self.lengths, self.max_lengths)],
            verifier_called=verifier_called,
            sources=accepted.sources,
        )

    def plan(self, draft_lengths: list[int]) -> None:
        """Set the draft lengths of the next step."""
        if draft_lengths != self.draft_lengths:
            self.draft_lengths, self._on_device = draft_lengths, None

    def keep(self, kept: list[int]) -> None:
        """Drop all rows but ``kept``, and have them in this order."""
        names = ("rows", "lengths", "max_lengths", "uncached", "draft_lengths")
        for name in names:
            values = getattr(self, name)
            setattr(self, name, [values[i] for i in kept])
        self.tokens, self.scores = keep_rows(self.tokens, kept), keep_rows(self.scores, kept)
        self.last = keep_rows(self.last, kept)
        if self.features is not None:
            self.features = keep_rows(self.features, kept)
        self._on_device = None
