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
from specdec_plugins.models.attention import among_themselves
from specdec_plugins.models.drafter_decoder import DrafterDecoder, Slots
from specdec_plugins.models.layers import additive, source_mask, source_memory

#: Logits that exist at the same time: 256 MiB in float32.
CHUNK = 2**26


@dataclass(frozen=True)
class SlotTargets:
    """The targets of some scored slots."""

    #: ``(slots,)`` the target's tokens.
    gold: Tensor
    #: ``(states, channels)`` the verifier's states that predict these tokens, each of them once:
    #: slots of several blocks may stand for the same token.
    verifier_states: Tensor | None
    #: ``(slots,)`` the index of each slot's state.
    state: Tensor | None


#: Turns logits ``(slots, vocab)`` into tensors over the slots.
SlotReader = Callable[[Tensor, SlotTargets], tuple[Tensor, ...]]


@dataclass
class TrainingPass:
    """The blocks of a batch, which both passes share: glancing, and learning."""

    decoder: DrafterDecoder
    #: ``(batch, length)``.
    target: Tensor
    blocks: Blocks
    encoder_out: EncoderOut
    #: ``(batch, length, channels)`` read from the verifier's states.
    features: Tensor | None
    #: The token before each target's first one.
    begin: int
    #: ``(batch,)`` seeds that choose slots which do not see the token before them; None: all do.
    hiding: Tensor | None
    #: ``(batch, length, channels)`` the verifier's states, for the reader of logits.
    labels: Tensor | None

    def __post_init__(self) -> None:
        decoder = self.decoder
        blocks = self.blocks
        self._runners = decoder.runners()
        self._table = decoder.positions(self.target.size(1) + blocks.gold.size(2))
        states = self.encoder_out["encoder_out"][0]
        mask = source_mask(self.encoder_out, states.dtype)
        memory = source_memory(self._runners, states)
        self._source = memory, mask, decoder.copies(self.encoder_out, mask, self._table)
        scored = blocks.scored
        self._gold = blocks.gold[scored]
        self._at = blocks.positions[scored]
        self._row = scored.nonzero()[:, 0]
        before = F.pad(self.target, (1, 0), value=self.begin)
        self._previous = before[self._row, self._at]
        self._hidden = decoder.hidden(self.hiding, blocks.gold)
        if self._hidden is not None:
            self._hidden = self._hidden[scored]

    def score(self, revealed: Tensor, read: SlotReader) -> list[Tensor]:
        """Return each scored slot's best token ``(n,)``, and the reader's results.

        The logits are made and read some slots at a time. Those of the first slots are stored for
        the gradient; the others' are made again then.

        Args:
            revealed: ``(batch, blocks, slots)`` True for slots whose tokens are visible.
        """
        states = self._states(revealed)
        size = max(1, CHUNK // self.decoder.entries)
        parts = [self._read(states[:size], slice(size), read)]
        for start in range(size, len(states), size):
            slots = slice(start, start + size)
            parts.append(
                checkpoint(
                    self._read,
                    states[slots],
                    slots,
                    read,
                    use_reentrant=False,
                    preserve_rng_state=False,
                )
            )
        return [torch.cat(values) for values in zip(*parts)]

    def _states(self, revealed: Tensor) -> Tensor:
        """Return ``(n, channels)`` the states of the scored slots."""
        target = self.target
        blocks = self.blocks
        batch, length = target.shape
        prefix = torch.arange(length, device=target.device).expand(batch, -1)
        positions = torch.cat([prefix, blocks.positions.flatten(1)], dim=1)
        tokens = torch.cat([target, blocks.gold.flatten(1)], dim=1)
        no_slots = torch.zeros_like(target).bool()
        is_mask = torch.cat([no_slots, ~revealed.flatten(1)], dim=1)
        slots = Slots(tokens, is_mask, positions, self._table, *self._source, self.features)
        x = self.decoder.embed(slots)
        mask = additive(self._seen()[:, None], x.dtype)
        layers = [(r, among_themselves(mask, r.layer.self_attn)) for r in self._runners]
        only = torch.cat([no_slots, blocks.scored.flatten(1)], dim=1)
        return self.decoder.run(x, slots, layers, only)

    def _seen(self) -> Tensor:
        """Return ``(batch, slots, slots)`` True where a slot sees another."""
        blocks = self.blocks
        length = self.target.size(1)
        batch, count, size = blocks.gold.shape
        device = blocks.cuts.device
        prefix = torch.arange(length, device=device)
        owner = torch.arange(count, device=device).repeat_interleave(size)
        before_cut = prefix < blocks.cuts[..., None]
        same_block = (owner[:, None] == owner).expand(batch, -1, -1)
        block_rows = torch.cat([before_cut.repeat_interleave(size, dim=1), same_block], dim=2)
        if self.decoder.causal:
            seen = (prefix <= prefix[:, None]).expand(batch, -1, -1)
            prefix_rows = F.pad(seen, (0, count * size))
        else:
            # One block: a bidirectional prefix sees it, and its own tokens before the cut.
            prefix_rows = F.pad(before_cut, (0, size), value=True).expand(-1, length, -1)
        return torch.cat([prefix_rows, block_rows], dim=1)

    def _read(self, states: Tensor, slots: slice, read: SlotReader) -> tuple[Tensor, ...]:
        hidden = None if self._hidden is None else self._hidden[slots]
        logits = self.decoder.slot_logits(states, self._previous[slots], hidden)
        wanted = index = None
        if self.labels is not None:
            pairs = torch.stack([self._row[slots], self._at[slots]])
            (rows, columns), index = torch.unique(pairs, dim=1, return_inverse=True)
            wanted = self.labels[rows, columns]
        targets = SlotTargets(self._gold[slots], wanted, index)
        return logits.detach().argmax(-1), *read(logits, targets)
