"""The rows that are being decoded. No fairseq in here."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.decoding import kernels
from specdec_plugins.decoding.acceptance import Accepted
from specdec_plugins.decoding.drafts import Draft
from specdec_plugins.decoding.kernels import Ints
from specdec_plugins.decoding.step_result import StepResult
from specdec_plugins.decoding.target_prefix import TargetPrefix
from specdec_plugins.host.fairseq_types import EncoderOut, NetInput
from specdec_plugins.models.rows import keep_rows


class RowCounts(NamedTuple):
    """The counts of a batch on the device, each ``(rows,)``."""

    lengths: Tensor
    max_lengths: Tensor
    draft_lengths: Tensor


class Batch:
    """The unfinished rows: tokens on the device, counts on the host."""

    def __init__(
        self,
        net_input: NetInput,
        encoder_out: EncoderOut | None,
        prefix: TargetPrefix,
        max_lengths: list[int],
        longest_draft: int,
        precision: torch.dtype,
    ) -> None:
        """
        Args:
            encoder_out: the verifier's, if its encoder was run.
            prefix: forced tokens, which are not committed yet.
            max_lengths: the largest number of tokens of each row before EOS.
            longest_draft: in slots or nodes.
            precision: that of scores.
        """
        rows = len(max_lengths)
        self.net_input, self.encoder_out = net_input, encoder_out
        self.rows = list(range(rows))
        """The index of each row in the batch as it began."""
        # A row's last step may start at its maximum length and write a whole draft after it.
        self.capacity = max(max_lengths) + 2 * (longest_draft + 1)
        """Tokens that a row has room for."""
        self.tokens = prefix.begins[:, None].repeat(1, self.capacity)
        """``(rows, capacity)`` the first token (EOS by default), the committed ones, then
        padding."""
        self.device = self.tokens.device
        self.scores = torch.zeros(rows, self.capacity, dtype=precision, device=self.device)
        """``(rows, capacity)`` log-probabilities of ``tokens``."""
        self.last = self.tokens[:, 0]
        """``(rows,)`` the last of the tokens."""
        self.features: Tensor | None = None
        """``(rows, capacity, channels)`` the verifier's states for the committed tokens, from
        index 0, for a drafter that reads them; None before the first step."""
        self.free_from = prefix.free_from
        """Positions before this one have no minimum length: some row's prefix holds them."""
        self.lengths = [0] * rows
        """Committed tokens, forced ones included."""
        self.max_lengths = max_lengths
        self.uncached = [0] * rows
        """Tokens committed since the last pass of a causal drafter, which has not cached them."""
        self.draft_lengths = [0] * rows
        """Draft lengths of the next step."""
        self._on_device: RowCounts | None = None

    @property
    def on_device(self) -> RowCounts:
        """The counts on the device, copied at the first use after a change."""
        if self._on_device is None:
            counts = [self.lengths, self.max_lengths, self.draft_lengths]
            self._on_device = RowCounts(*kernels.to_device(counts, self.device).unbind())
        return self._on_device

    def room(self, slots: int) -> list[int] | None:
        """Return the tokens that each row may still have before EOS; None if all have room for
        ``slots``."""
        room = [limit - length for limit, length in zip(self.max_lengths, self.lengths)]
        return room if min(room) < slots else None

    def commit(
        self,
        draft: Draft,
        accepted: Accepted,
        scores: Tensor,
        states: Tensor | None,
        verifier_called: bool = True,
    ) -> StepResult:
        """Append what was accepted of a draft.

        Args:
            scores: ``(rows, n)`` the accepted tokens' log-probabilities.
            states: ``(rows, slots, channels)`` the verifier's, for a drafter that reads them.
        """
        committed, called = accepted.committed, draft.called
        self._append(self.tokens, accepted.tokens, committed, 1)
        self._append(self.scores, scores, committed, 1)
        if states is not None:
            if self.features is None:
                self.features = states.new_empty(*self.tokens.shape, states.size(-1))
            self._append(self.features, states, committed, 0, accepted.sources)
        self.last = kernels.to_device(accepted.last, self.device)
        before = zip(called, self.uncached, committed)
        self.uncached = [n if cached else m + n for cached, m, n in before]
        self.lengths = [length + n for length, n in zip(self.lengths, committed)]
        self._on_device = None
        return StepResult(
            rows=self.rows,
            drafted=draft.drafted,
            called=called,
            verified=accepted.verified,
            accepted=accepted.accepted,
            committed=committed,
            finished=accepted.finished,
            last=accepted.last,
            lengths=self.lengths,
            limited=[length > limit for length, limit in zip(self.lengths, self.max_lengths)],
            sources=accepted.sources,
            verifier_called=verifier_called,
        )

    def _append(
        self,
        target: Tensor,
        new: Tensor,
        counts: list[int],
        offset: int,
        sources: Tensor | None = None,
    ) -> None:
        """Append ``counts`` of the ``new`` entries ``(rows, n, …)`` to every row.

        Args:
            target: ``(rows, capacity, …)``; its row begins ``offset`` entries before its first
                token. The entries after the new ones may be overwritten.
            sources: ``(rows, n)`` indices of the new entries to append; None: the first ones.
        """
        width = max(counts)
        end = offset + max(map(int.__add__, self.lengths, counts))
        # Compiled code does not look where it writes.
        assert end <= target.size(1)
        if kernels.is_host(self.device):
            chosen = np.arange(width)[None] if sources is None else kernels.on_host(sources)
            bounds = np.array((self.lengths, counts))
            arrays = kernels.numbers(target), kernels.numbers(new.contiguous())
            _copy(*arrays, bounds, offset, chosen)
            return
        slots = kernels.indices(width, self.device)
        row = kernels.indices(len(counts), self.device)[:, None]
        positions = self.on_device.lengths[:, None] + slots + offset
        target[row, positions] = new[row, slots[None] if sources is None else sources[:, :width]]

    def plan(self, draft_lengths: list[int]) -> None:
        """Set the draft lengths of the next step."""
        if draft_lengths != self.draft_lengths:
            self.draft_lengths, self._on_device = draft_lengths, None

    def keep(self, rows: list[int]) -> None:
        """Go on with ``rows`` only, in this order."""
        for name in ("rows", "lengths", "max_lengths", "uncached", "draft_lengths"):
            values = getattr(self, name)
            setattr(self, name, [values[i] for i in rows])
        self.tokens, self.scores = keep_rows(self.tokens, rows), keep_rows(self.scores, rows)
        self.last = keep_rows(self.last, rows)
        if self.features is not None:
            self.features = keep_rows(self.features, rows)
        self._on_device = None


@kernels.compiled
def _copy(target: Any, new: Any, bounds: Ints, offset: int, sources: Ints) -> None:
    """Copy rows; ``bounds``: ``(2, rows)`` lengths and counts; ``sources``: ``(rows, n)`` or, for
    all rows, ``(1, n)``."""
    for row in range(bounds.shape[1]):
        begin = bounds[0, row] + offset
        chosen = sources[row if len(sources) > 1 else 0]
        for n in range(bounds[1, row]):
            target[row, begin + n] = new[row, chosen[n]]
