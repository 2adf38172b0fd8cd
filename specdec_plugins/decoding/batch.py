"""The rows that are being decoded, and what a step did to them. No fairseq in here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specdec_plugins.decoding.controllers import Outcome
from specdec_plugins.decoding.draft_tree import Path
from specdec_plugins.decoding.indices import indices, row_starts
from specdec_plugins.decoding.tree_source import TreeSource
from specdec_plugins.decoding.verdict import Verdict


@dataclass(frozen=True)
class StepReport:
    """What the host knows of a step: a value a row."""

    drafted: list[int]
    """Draft lengths."""
    verified: list[int]
    """Verify lengths."""
    accepted: list[int]
    """Drafted tokens that were committed."""
    committed: list[int]
    """Tokens that were committed, bonus token included."""
    finished: list[bool]
    """Whether they end the sentence."""
    path: Path | None = None
    """The way through a tree; on the device."""


@dataclass(frozen=True)
class Prefixes:
    """What a drafter is to go on from, a row each."""

    tokens: Tensor
    """``(rows, window)`` the tokens that the drafter has not cached, left-aligned; for one that is
    bidirectional the whole prefixes."""
    new: Tensor
    """``(rows,)`` how many of them each row has."""
    lengths: Tensor
    """``(rows,)`` prefix lengths p."""
    longest: int
    """No prefix is longer; the host knows it."""
    features: Tensor | None
    """``(rows, window, channels)`` the verifier's states for ``tokens``, for drafters that read
    them."""
    slots: Tensor | None = None
    """``(rows,)`` how many slots each row is to have of the block, at least 1; None: all."""
    rows: Tensor | None = None
    """``(rows,)`` which rows of the batch these are; None: all."""


@dataclass
class Batch:
    """The rows still being decoded; tensors are on the device, lists on the host."""

    rows: list[int]
    """Where each row stands in the sample."""
    tokens: Tensor
    """``(rows, capacity)`` EOS, then the committed tokens, then whatever."""
    scores: Tensor
    """``(rows, capacity)`` log-probabilities of the committed tokens under the verifier."""
    lengths: Tensor
    """``(rows,)`` committed tokens."""
    max_lengths: Tensor
    """``(rows,)`` most tokens before EOS."""
    uncached: Tensor
    """``(rows,)`` tokens committed since the drafter's last pass: if causal, it has not cached
    them."""
    features: Tensor | None
    """``(rows, capacity, channels)`` the verifier's states for the committed tokens, the first at
    0, then whatever; only for a drafter that reads them, and none before the first step."""
    drafter_input: Any
    """What the drafter is to encode; None once it has."""
    draft_lengths: Tensor | None
    """``(rows,)`` of the next step; None where the controller's never change."""
    host_lengths: list[int]
    host_max_lengths: list[int]
    host_uncached: list[int]
    host_draft_lengths: list[int]
    verify_lengths: Tensor | None = None
    """``(rows,)`` of the present step; None where every row verifies as many slots."""
    source: TreeSource | None = None
    """What the last step's tree was grown from; None where nothing is left of it."""

    @classmethod
    def begin(
        cls,
        net_input: dict[str, Tensor],
        encoder_out: dict[str, list[Tensor]],
        eos: int,
        capacity: int,
        max_lengths: tuple[Tensor, list[int]],
        draft_lengths: tuple[Tensor | None, list[int]],
    ) -> Batch:
        """Nothing is decoded yet.

        Args:
            encoder_out: the verifier's.
            capacity: how many tokens a row has room for.
            max_lengths, draft_lengths: ``(rows,)``, on the device and on the host.
        """
        source = net_input["src_tokens"]
        rows = len(source)
        # Scores are float32, as in fairseq, and float64 of a float64 verifier.
        precision = torch.promote_types(encoder_out["encoder_out"][0].dtype, torch.float32)
        return cls(
            rows=list(range(rows)),
            tokens=source.new_full((rows, capacity), eos),
            scores=torch.zeros(rows, capacity, dtype=precision, device=source.device),
            lengths=source.new_zeros(rows),
            max_lengths=max_lengths[0],
            uncached=source.new_zeros(rows),
            features=None,
            drafter_input=(net_input, encoder_out),
            draft_lengths=draft_lengths[0],
            host_lengths=[0] * rows,
            host_max_lengths=max_lengths[1],
            host_uncached=[0] * rows,
            host_draft_lengths=draft_lengths[1],
        )

    @property
    def drafts(self) -> bool:
        """Whether there may be a draft, now or later."""
        return self.draft_lengths is not None or any(self.host_draft_lengths)

    @property
    def last(self) -> Tensor:
        """``(rows,)`` the last committed token of each, EOS before the first."""
        return self.tokens.gather(1, self.lengths[:, None])[:, 0]

    def room(self, slots: int) -> list[int] | None:
        """How many tokens each row may still have before EOS; None if all have ``slots`` or more,
        which is mostly so."""
        room = [m - n for m, n in zip(self.host_max_lengths, self.host_lengths)]
        return room if min(room) < slots else None

    def prefixes(self, causal: bool, slots: int, rows: list[int] | None = None) -> Prefixes:
        """What a drafter is to go on from with blocks of ``slots``.

        Args:
            causal: it has cached what it has been given.
            rows: which it is to draft for; None for all.
        """
        new, lengths = self.uncached if causal else self.lengths, self.lengths
        host_new, longest = self.host_uncached if causal else self.host_lengths, self.host_lengths
        own, index = None, None
        if min(self.host_draft_lengths) < slots:
            assert self.draft_lengths is not None
            own = self.draft_lengths.clamp(1, slots)
        if rows is not None:
            index = torch.tensor(rows, device=lengths.device)
            new, lengths, own = new[index], lengths[index], None if own is None else own[index]
            host_new, longest = [host_new[i] for i in rows], [longest[i] for i in rows]
        positions = (lengths - new)[:, None] + indices(max(host_new), lengths.device)
        tokens = self.tokens if index is None else self.tokens[index]
        return Prefixes(
            tokens.gather(1, positions + 1),
            new,
            lengths,
            max(longest),
            self.recall(positions, index),
            own,
            index,
        )

    def remember(self, states: Tensor, positions: Tensor) -> None:
        """Note the verifier's states ``(rows, slots, channels)`` at ``(rows, slots)``."""
        if self.features is None:
            self.features = states.new_empty(*self.tokens.shape, states.size(-1))
        flat = self._flat(positions)
        self.features.flatten(0, 1).index_copy_(0, flat, states.flatten(0, 1))

    def recall(self, positions: Tensor, rows: Tensor | None = None) -> Tensor | None:
        """The states ``(rows, slots, channels)`` at ``(rows, slots)`` of all rows, or of some; None
        before the first."""
        if self.features is None:
            return None
        states = self.features.flatten(0, 1).index_select(0, self._flat(positions, rows))
        return states.view(*positions.shape, -1)

    def _flat(self, positions: Tensor, rows: Tensor | None = None) -> Tensor:
        """Positions within all rows one after another, which are quicker to copy to and from."""
        starts = row_starts(*self.tokens.shape, positions.device)
        return ((starts if rows is None else starts[rows]) + positions).flatten()

    def outcome(self, verdict: Verdict, left_over: bool) -> Outcome:
        """What to tell a controller that adapts its draft lengths.

        ``left_over``: there was no drafter's pass.
        """
        drafted, accepted = self.draft_lengths, verdict.accepted
        assert drafted is not None
        verified = drafted if self.verify_lengths is None else self.verify_lengths
        # Whether the verifier's own token came after them, and would have come without a limit.
        stopped = verdict.new > accepted
        rejected = stopped & (accepted < verified) & (self.lengths <= self.max_lengths)
        return Outcome(
            drafted, verified, accepted, rejected, ~stopped, self.lengths, verdict.path, left_over
        )

    def move_on(self, new: Tensor, host_new: list[int], drew: list[bool]) -> None:
        """Count ``new`` ``(rows,)`` committed tokens; ``drew``: which had a drafter's pass."""
        if all(drew):
            self.uncached = new
        elif any(drew):
            drafted = torch.tensor(drew, device=new.device)
            self.uncached = torch.where(drafted, new, self.uncached + new)
        else:
            self.uncached = self.uncached + new
        before = zip(drew, self.host_uncached, host_new)
        self.host_uncached = [n if cached else m + n for cached, m, n in before]
        self.host_lengths = [n + m for n, m in zip(self.host_lengths, host_new)]

    def keep(self, kept: list[int]) -> Tensor:
        """Drop all rows but ``kept``; returns them as an index on the device."""
        if self.source is not None:
            self.source.keep(kept)
        index = torch.tensor(kept, device=self.tokens.device)
        for name in (
            "rows",
            "host_lengths",
            "host_max_lengths",
            "host_uncached",
            "host_draft_lengths",
        ):
            values = getattr(self, name)
            setattr(self, name, [values[i] for i in kept])
        for name in (
            "tokens",
            "scores",
            "lengths",
            "max_lengths",
            "uncached",
            "features",
            "draft_lengths",
        ):
            tensor = getattr(self, name)
            setattr(self, name, None if tensor is None else tensor[index])
        return index
