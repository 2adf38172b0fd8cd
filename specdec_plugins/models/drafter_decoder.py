"""What the decoders of all drafters share: embedded slots in, states of slots out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from specdec_plugins.host.fairseq_types import EncoderOut
from specdec_plugins.models.lattice import CANDIDATES, SlotLogits, SlotScores
from specdec_plugins.models.layers import (
    Attend,
    DecoderLayerRunner,
    KeysValues,
    Projection,
    position_table,
    source_mask,
    source_memory,
)
from specdec_plugins.models.rows import keep_rows

if TYPE_CHECKING:
    from fairseq.modules.transformer_layer import TransformerDecoderLayerBase

    from specdec_plugins.models.layers import Positions


@dataclass
class Memory:
    """What a drafter knows of a batch's source, computed once a sentence."""

    keys_values: KeysValues
    mask: Tensor | None
    """Additive source padding mask ``(batch, 1, 1, source)``."""
    copies: Tensor | None = None
    """``(batch, positions, channels)`` soft copies of the source, for drafters that make them."""

    def of(self, rows: Tensor) -> Memory:
        """Return the memory of some rows of the batch; not of a pair of each layer."""
        assert isinstance(self.keys_values, Tensor)
        return Memory(
            self.keys_values[:, :, rows],
            None if self.mask is None else self.mask[rows],
            None if self.copies is None else self.copies[rows],
        )

    def keep(self, rows: list[int], count: int) -> Memory:
        """As :func:`keep_rows`; not of a pair of each layer."""
        assert isinstance(self.keys_values, Tensor)
        return Memory(
            keep_rows(self.keys_values, rows, 2, count),
            None if self.mask is None else keep_rows(self.mask, rows, 0, count),
            None if self.copies is None else keep_rows(self.copies, rows, 0, count),
        )


class SlotScorer(Protocol):
    """Scores what the slots of a block may hold; built once, with weights that are not to
    change."""

    projections: Sequence[Projection]
    lookups: Sequence[Tensor]
    """As of a step."""
    candidates: int
    """Of each slot of a lattice."""

    def __call__(self, x: Tensor, last: Tensor) -> tuple[Tensor, ...]:
        """From states ``(rows, slots, channels)`` and the token ``(rows,)`` before each block."""
        ...

    def read(self, *scores: Tensor) -> SlotScores:
        """Return what a call has returned."""
        ...


class LogitScorer:
    """Scores every slot alone."""

    lookups: Sequence[Tensor] = ()

    def __init__(self, logits: Projection, vocabulary: Tensor | None = None) -> None:
        """``vocabulary``: as of a :class:`SlotLogits`."""
        self._logits, self._vocabulary = logits, vocabulary
        self.projections: Sequence[Projection] = [logits]
        assert logits.weight is not None
        # Pad is never among them.
        most = len(logits.weight) - (vocabulary is None)
        self.candidates = min(CANDIDATES, most)

    def __call__(self, x: Tensor, last: Tensor) -> tuple[Tensor]:
        return (self._logits(x),)

    def read(self, *scores: Tensor) -> SlotLogits:
        # In float32: on a CPU, bfloat16's argmax is five times slower.
        return SlotLogits(scores[0].float(), self._vocabulary)


class DrafterDecoder(nn.Module):
    """A non-autoregressive decoder over prefix and masks; subclasses embed and attend."""

    embed_positions: Positions
    layer_norm: nn.Module | None
    copies_source = False
    """Whether masks are soft copies of the source."""
    causal: bool
    """True where prefix slots do not see the block, so that their states can be cached."""
    draft_vocabulary: Tensor | None
    """``(n,)`` the tokens that drafts are made of, without pad; None: all. The output layer is the
    larger part of a draft's arithmetic, and most of what is written are frequent tokens (FR-Spec,
    Zhao et al., ACL 2025). What is learnt does not depend on it."""

    def __init__(
        self, embed_positions: Positions, layers: nn.ModuleList, padding: int, entries: int
    ) -> None:
        """``entries``: of the target dictionary."""
        super().__init__()
        self.entries = entries
        self.register_buffer("draft_vocabulary", None)
        self.embed_positions = embed_positions
        self.layers = layers
        self.layer_norm = None
        self.padding = padding

    @property
    def channels(self) -> int:
        """Width of the states."""
        layer: TransformerDecoderLayerBase = self.layers[0]
        return int(layer.embed_dim)

    def embed(
        self,
        tokens: Tensor,
        is_mask: Tensor,
        positions: Tensor,
        memory: Memory,
        table: Tensor,
        features: Tensor | None,
    ) -> Tensor:
        """``(batch, slots, channels)`` input states of slots at ``positions``.

        ``features`` ``(batch, n, channels)`` are of the first n slots, as :meth:`feature_reader`
        has read them.
        """
        raise NotImplementedError

    def feature_reader(self) -> Projection:
        """Return what reads the verifier's states, in decoders that do."""
        raise NotImplementedError

    def before_layer(self, x: Tensor, positions: Tensor, table: Tensor) -> Tensor:
        """A hook on every layer's input."""
        return x

    def output_layer(self, x: Tensor) -> Tensor:
        """Logits ``(…, vocab)``."""
        raise NotImplementedError

    def slot_logits(self, x: Tensor, previous: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Logits ``(…, vocab)`` of block slots with states ``x`` ``(…, channels)``.

        Args:
            previous: ``(…)`` the token before each slot, EOS before the first; only decoders that
                look at it use it.
            hidden: ``(…)`` True where training hides that token.
        """
        return self.output_layer(x)

    def hidden(self, seeds: Tensor, slots: Tensor) -> Tensor | None:
        """Return which slots of ``(batch, blocks, slots)`` are not told the token before them in
        training; None in decoders that never look at it.

        Args:
            seeds: ``(batch,)`` of which each sentence's are drawn.
        """
        return None

    def runners(self, frozen: bool = False) -> list[DecoderLayerRunner]:
        """Return the layers, ready to run with their present weights, which are not to change."""
        return [DecoderLayerRunner(layer, frozen) for layer in self.layers]

    @property
    def tables(self) -> Any:
        """The module that holds ``embed_tokens`` and ``output_projection``."""
        return self

    def slot_scorer(self) -> SlotScorer:
        """Return what scores a block's slots, with the present weights."""
        return LogitScorer(self.slot_projection(), self.draft_vocabulary)

    def slot_projection(self) -> Projection:
        """Logits to choose tokens by, of the draft vocabulary; of all tokens pad's is so low that
        it is never chosen."""
        weight = self.tables.output_projection.weight.detach()
        if self.draft_vocabulary is not None:
            return Projection(weight[self.draft_vocabulary])
        ban = weight.new_zeros(len(weight))
        ban[self.padding] = torch.finfo(ban.dtype).min / 2
        return Projection(weight, ban)

    def memory(
        self, encoder_out: EncoderOut, runners: list[DecoderLayerRunner], table: Tensor
    ) -> Memory:
        """Project the source once."""
        states = encoder_out["encoder_out"][0]
        mask = source_mask(encoder_out, states.dtype)
        copies = self.copies(encoder_out, mask, table)
        return Memory(source_memory(runners, states), mask, copies)

    def copies(self, encoder_out: EncoderOut, mask: Tensor | None, table: Tensor) -> Tensor | None:
        """Soft copies of the source, in decoders that make them; ``mask`` as of a memory."""
        return None

    def positions(self, length: int) -> Tensor:
        """Position states ``(length, channels)``."""
        table = position_table(self.embed_positions, length, self.padding)
        assert table is not None
        return table

    def run(
        self,
        x: Tensor,
        positions: Tensor,
        table: Tensor,
        layers: Sequence[tuple[DecoderLayerRunner, Attend]],
        memory: Memory,
        only: Tensor | None = None,
    ) -> Tensor:
        """Run all layers over embedded slots ``x``; returns the states before the output layer.

        Args:
            layers: each with how its slots attend.
            only: slots of the last layer, as a :class:`DecoderLayerRunner` has it.
        """
        last = len(layers) - 1
        for at, ((runner, attend), source) in enumerate(zip(layers, memory.keys_values)):
            x = self.before_layer(x, positions, table)
            x = runner(x, attend, source, memory.mask, only if at == last else None)
        return x if self.layer_norm is None else self.layer_norm(x)
