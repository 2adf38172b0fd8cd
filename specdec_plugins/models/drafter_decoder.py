"""What the decoders of all drafters share: embedded slots in, states of slots out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from specdec_plugins.fairseq_types import EncoderOut
from specdec_plugins.models.lattice import CANDIDATES, Lattice
from specdec_plugins.models.layers import (
    Attend,
    DecoderLayerRunner,
    Projection,
    position_table,
    projection,
    source_mask,
)

if TYPE_CHECKING:
    from fairseq.modules.transformer_layer import TransformerDecoderLayerBase

    from specdec_plugins.models.layers import Positions


@dataclass
class Memory:
    """What a drafter knows of a batch's source, computed once a sentence."""

    keys_values: list[tuple[Tensor, Tensor]]
    """Cross-attention keys and values of each layer, ``(batch, heads, source, dim)``."""
    mask: Tensor | None
    """Additive source padding mask ``(batch, 1, 1, source)``."""
    copies: Tensor | None = None
    """``(batch, positions, channels)`` soft copies of the source, for drafters that make them."""

    def keep(self, rows: Tensor) -> Memory:
        """The memory of some rows of the batch."""
        return Memory(
            [(k[rows], v[rows]) for k, v in self.keys_values],
            None if self.mask is None else self.mask[rows],
            None if self.copies is None else self.copies[rows],
        )


class DrafterDecoder(nn.Module):
    """A non-autoregressive decoder over prefix and masks; subclasses embed and attend."""

    embed_positions: Positions
    layer_norm: nn.Module | None
    causal: bool
    """True where prefix slots do not see the block, so that their states can be cached."""

    def __init__(self, embed_positions: Positions, layers: nn.ModuleList, padding: int) -> None:
        super().__init__()
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

    def feature_reader(self, frozen: bool = False) -> Projection:
        """What reads the verifier's states, in decoders that do; ``frozen`` as of a layer."""
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
        """Which slots of ``(batch, blocks, slots)`` are not told the token before them in training;
        None in decoders that never look at it.

        Args:
            seeds: ``(batch,)`` of which each sentence's are drawn.
        """
        return None

    def choose(self, x: Tensor, last: Tensor) -> Tensor:
        """Tokens ``(rows, slots)`` for a block with states ``x``; ``last`` ``(rows,)`` precedes it.

        Pad is never chosen.
        """
        return self.choices(self._project(x)).argmax(-1)

    def choose_with_confidence(self, x: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """As :meth:`choose`, and each token's probability ``(rows, slots)``, float32.

        The probability is the drafter's own, among all that it chose that token from.
        """
        best = self.choices(self._project(x)).softmax(-1).max(-1)
        return best.indices, best.values

    def lattice(self, x: Tensor, last: Tensor) -> Lattice:
        """What the slots may hold: with states and ``last`` as of :meth:`choose`.

        A slot's candidates do not depend on those of the slot before, as long as no subclass knows
        better.
        """
        logits = self.choices(self._project(x))
        # Pad is never among them.
        best, candidates = logits.topk(min(CANDIDATES, logits.size(-1) - 1))
        following = best[:, 1:, None].expand(-1, -1, best.size(-1), -1)
        return Lattice(candidates, best[:, 0], following)

    def choices(self, logits: Tensor) -> Tensor:
        """Logits to choose tokens by: pad's is minus infinity."""
        # In float32: on a CPU, bfloat16's argmax is five times slower.
        logits = logits.float()
        logits[..., self.padding] = -torch.inf
        return logits

    def runners(self, frozen: bool = False) -> list[DecoderLayerRunner]:
        """The layers, ready to run with their present weights, which are not to change."""
        return [DecoderLayerRunner(layer, frozen) for layer in self.layers]

    @property
    def tables(self) -> Any:
        """The module that holds ``embed_tokens`` and ``output_projection``."""
        return self

    def prepare(self) -> None:
        """Get ready for :meth:`choose` with the present weights, which are not to change."""
        self._project = projection(self.tables.output_projection.weight, frozen=True)

    def memory(
        self, encoder_out: EncoderOut, runners: list[DecoderLayerRunner], table: Tensor
    ) -> Memory:
        """Project the source once."""
        states = encoder_out["encoder_out"][0]
        return Memory(
            [runner.project(states) for runner in runners], source_mask(encoder_out, states.dtype)
        )

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
        runners: list[DecoderLayerRunner],
        attends: list[Attend],
        memory: Memory,
    ) -> Tensor:
        """All layers over embedded slots ``x``; the states before the output layer."""
        for runner, attend, source in zip(runners, attends, memory.keys_values):
            x = runner(self.before_layer(x, positions, table), attend, source, memory.mask)
        return x if self.layer_norm is None else self.layer_norm(x)
