"""Many blocks in one pass, as drafters are trained.

The slots of a sentence's blocks are laid out as ``[target prefix | block 1 | block 2 | …]`` with
explicit positions, and the attention mask keeps the blocks apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from specdec_plugins.data.block_mask import Blocks
from specdec_plugins.host.fairseq_types import EncoderOut
from specdec_plugins.models.drafter_decoder import DrafterDecoder
from specdec_plugins.models.layers import additive, among_themselves

CHUNK = 2**26
"""Logits that are there at once, of whole slots: 256 MiB in float32."""


@dataclass(frozen=True)
class SlotTargets:
    """What some scored slots are to predict."""

    gold: Tensor
    """``(slots,)`` the target's tokens."""
    verifier_states: Tensor | None
    """``(places, channels)`` the verifier's states that predict these tokens, each of them once:
    slots of several blocks may stand for one token of the sentence."""
    place: Tensor | None
    """``(slots,)`` which of these is each slot's."""


SlotReader = Callable[[Tensor, SlotTargets], tuple[Tensor, ...]]
"""What is kept of logits ``(slots, vocab)``: tensors over the slots."""


def no_logits(logits: Tensor, targets: SlotTargets) -> tuple[Tensor, ...]:
    """Keeps none of them."""
    return ()


def logits_themselves(logits: Tensor, targets: SlotTargets) -> tuple[Tensor, ...]:
    """Keeps all of them."""
    return (logits,)


class TrainingPass:
    """The blocks of a batch, and what passes over them share: that of glancing, and the one that is
    learnt from."""

    def __init__(
        self,
        decoder: DrafterDecoder,
        target: Tensor,
        blocks: Blocks,
        encoder_out: EncoderOut,
        features: Tensor | None,
        begin: int,
        hiding: Tensor | None,
        labels: Tensor | None,
    ) -> None:
        """
        Args:
            target: ``(batch, length)``.
            features: ``(batch, length, channels)`` what is read of the verifier, in drafters that
                read its states.
            begin: what stands before the first token: EOS, or what begins targets in its place.
            hiding: ``(batch,)`` seeds of which slots are not told the token before them; None: all
                are.
            labels: ``(batch, length, channels)`` the verifier's states, for what reads logits; None
                where that needs none.
        """
        self._decoder, self._target, self._blocks = decoder, target, blocks
        self._features, self._labels = features, labels
        self._runners = decoder.runners()
        self._table = decoder.positions(target.size(1) + blocks.gold.size(2))
        self._memory = decoder.memory(encoder_out, self._runners, self._table)
        scored = blocks.scored
        self._gold, self._at = blocks.gold[scored], blocks.positions[scored]
        self._row = scored.nonzero()[:, 0]
        before = torch.cat([torch.full_like(target[:, :1], begin), target], dim=1)
        self._previous = before[self._row, self._at]
        hidden = None if hiding is None else decoder.hidden(hiding, blocks.gold)
        self._hidden = None if hidden is None else hidden[scored]

    def score(self, revealed: Tensor, read: SlotReader) -> list[Tensor]:
        """Each scored slot's best token ``(n,)``, and what is read of its logits.

        The logits are made and read some slots at a time. Those of the first slots, as many as
        there is room for, are kept for the gradient; the others' are made again then.

        Args:
            revealed: ``(batch, blocks, slots)`` the slots whose tokens are given.
        """
        states = self._states(revealed)
        size = max(1, CHUNK // self._decoder.tables.output_projection.weight.size(0))
        parts = [self._read(states[:size], slice(size), read)]
        for start in range(size, len(states), size):
            slots = slice(start, start + size)
            again = checkpoint(
                self._read,
                states[slots],
                slots,
                read,
                use_reentrant=False,
                preserve_rng_state=False,
            )
            parts.append(again)
        return [torch.cat(values) for values in zip(*parts, strict=True)]

    def _states(self, revealed: Tensor) -> Tensor:
        """``(n, channels)``: of the scored slots."""
        target, blocks = self._target, self._blocks
        batch, length = target.shape
        prefix = torch.arange(length, device=target.device).expand(batch, -1)
        positions = torch.cat([prefix, blocks.positions.flatten(1)], dim=1)
        tokens = torch.cat([target, blocks.gold.flatten(1)], dim=1)
        no_slots = torch.zeros_like(target).bool()
        is_mask = torch.cat([no_slots, ~revealed.flatten(1)], dim=1)
        given = positions, self._memory, self._table
        x = self._decoder.embed(tokens, is_mask, *given, self._features)
        mask = additive(self._seen()[:, None], x.dtype)
        layers = [(one, among_themselves(mask, one.layer.self_attn)) for one in self._runners]
        only = torch.cat([no_slots, blocks.scored.flatten(1)], dim=1)
        return self._decoder.run(x, positions, self._table, layers, self._memory, only)

    def _seen(self) -> Tensor:
        """``(batch, slots, slots)``: which slot sees which."""
        blocks, length = self._blocks, self._target.size(1)
        batch, count, size = blocks.gold.shape
        device = blocks.cuts.device
        prefix = torch.arange(length, device=device)
        owner = torch.arange(count, device=device).repeat_interleave(size)
        before_cut = prefix < blocks.cuts[..., None]
        block_rows = torch.cat(
            [
                before_cut.repeat_interleave(size, dim=1),
                (owner[:, None] == owner).expand(batch, -1, -1),
            ],
            dim=2,
        )
        if self._decoder.causal:
            seen = (prefix <= prefix[:, None]).expand(batch, -1, -1)
            prefix_rows = F.pad(seen, (0, count * size))
        else:
            # One block: a bidirectional prefix sees it, and its own tokens before the cut.
            prefix_rows = F.pad(before_cut, (0, size), value=True).expand(-1, length, -1)
        return torch.cat([prefix_rows, block_rows], dim=1)

    def _read(self, states: Tensor, slots: slice, read: SlotReader) -> tuple[Tensor, ...]:
        """Return the best tokens of some of the scored slots, and what is read of their logits."""
        hidden = None if self._hidden is None else self._hidden[slots]
        logits = self._decoder.slot_logits(states, self._previous[slots], hidden)
        wanted, place = None, None
        if self._labels is not None:
            pairs = torch.stack([self._row[slots], self._at[slots]])
            (rows, columns), place = torch.unique(pairs, dim=1, return_inverse=True)
            wanted = self._labels[rows, columns]
        targets = SlotTargets(self._gold[slots], wanted, place)
        return logits.detach().argmax(-1), *read(logits, targets)
