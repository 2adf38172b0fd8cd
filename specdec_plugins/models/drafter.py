"""What all drafters share: blocks in, logits of their slots out.

A drafter's decoder input is a row's prefix ``y_0 … y_{p-1}`` (no BOS) followed by k masks; slot t
predicts ``y_t`` itself. In training one pass may hold several blocks of a sentence: the slots are
laid out as ``[target prefix | block 1 | block 2 | …]`` with explicit positions, and the attention
mask keeps the blocks apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.models import BaseFairseqModel
from torch import Tensor, nn

from specdec_plugins.data.block_mask import Blocks, glance
from specdec_plugins.models.layers import (
    Attend,
    DecoderLayerRunner,
    additive,
    dropout,
    position_table,
    source_mask,
)


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


@dataclass
class DrafterOutput:
    """A training pass: tensors over ``(batch, blocks, slots)``."""

    logits: Tensor
    """``(batch, blocks, slots, vocab)``."""
    blocks: Blocks
    scored: Tensor
    """Slots in the loss: those with a target and not revealed by glancing."""
    glanced_correct: Tensor
    """Slots that the glancing pass (or this one, without glancing) predicted right."""
    verifier_features: Tensor | None
    """``(batch, length, channels)`` the verifier's state that predicts each target token."""


class DrafterDecoder(nn.Module):
    """A non-autoregressive decoder over prefix and masks; subclasses embed and attend."""

    embed_positions: Any
    layer_norm: Any
    causal: bool
    """True where prefix slots do not see the block, so that their states can be cached."""

    def __init__(self, embed_positions: nn.Module, layers: nn.ModuleList, padding: int) -> None:
        super().__init__()
        self.embed_positions = embed_positions
        self.layers = layers
        self.layer_norm = None
        self.padding = padding

    def embed(
        self,
        tokens: Tensor,
        is_mask: Tensor,
        positions: Tensor,
        memory: Memory,
        table: Tensor,
        features: Tensor | None,
    ) -> Tensor:
        """``(batch, slots, channels)`` input states of slots at ``positions``."""
        raise NotImplementedError

    def before_layer(self, x: Tensor, positions: Tensor, table: Tensor) -> Tensor:
        """A hook on every layer's input."""
        return x

    def output_layer(self, x: Tensor) -> Tensor:
        """Logits ``(…, vocab)``."""
        raise NotImplementedError

    def slot_logits(self, x: Tensor, previous: Tensor) -> Tensor:
        """Logits ``(…, slots, vocab)`` of block slots with states ``x``.

        Args:
            previous: ``(…, slots)`` the token before each slot, EOS before the first; only
                decoders that look at it use it.
        """
        return self.output_layer(x)

    def choose(self, x: Tensor, last: Tensor) -> Tensor:
        """Tokens ``(rows, slots)`` for a block with states ``x``; ``last`` ``(rows,)`` precedes it.

        Pad is never chosen.
        """
        return self.best(self.output_layer(x))

    def best(self, logits: Tensor) -> Tensor:
        """The best token but pad."""
        # In float32: on a CPU, bfloat16's argmax is five times slower.
        logits = logits.float()
        logits[..., self.padding] = -torch.inf
        return logits.argmax(-1)

    def runners(self) -> list[DecoderLayerRunner]:
        """The layers, ready to run with their present weights."""
        return [DecoderLayerRunner(layer) for layer in self.layers]

    def memory(
        self, encoder_out: dict[str, list[Tensor]], runners: list[DecoderLayerRunner], table: Tensor
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


class Drafter(BaseFairseqModel):
    """Base of ``block`` and ``block_causal``."""

    encoder: Any
    decoder: DrafterDecoder
    uses_verifier_features = False
    shares_verifier_encoder = False

    def __init__(
        self, encoder: nn.Module | None, decoder: DrafterDecoder, block_size: int, eos: int
    ) -> None:
        super().__init__()
        self.eos = eos
        self.encoder = encoder
        self.decoder = decoder
        self.block_size = block_size
        # In a tuple, so that it is no submodule: its weights are neither trained nor saved.
        self._verifier: tuple[BaseFairseqModel] | tuple[()] = ()

    @property
    def target_vocabulary(self) -> int | None:
        """Entries of this drafter's own target table; None where it reads the verifier's."""
        table = getattr(self.decoder, "embed_tokens", None)
        return None if table is None else int(table.num_embeddings)

    def attach_verifier(self, verifier: BaseFairseqModel) -> None:
        """Let the drafter read the verifier's encoder, tables and states; it never changes them."""
        self._verifier = (verifier,)

    @property
    def verifier(self) -> Any:
        """The attached verifier.

        Raises:
            ValueError: none is attached.
        """
        if not self._verifier:
            raise ValueError("this drafter needs its verifier: give it with --AR-path")
        return self._verifier[0]

    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> Drafter:
        # The verifier follows to every device and dtype.
        if self._verifier:
            self._verifier[0]._apply(fn)
        return super()._apply(fn, *args, **kwargs)

    def max_positions(self) -> tuple[int, int]:
        """Longest source and target, in tokens, that training batches may hold."""
        encoder = self.verifier.encoder if self.encoder is None else self.encoder
        target = int(self.decoder.embed_positions.max_positions) - self.block_size
        return int(encoder.max_positions()), target

    def encode(self, src_tokens: Tensor, src_lengths: Tensor) -> dict[str, list[Tensor]]:
        """The encoder's output, in fairseq's form; a shared verifier encoder is frozen."""
        if self.encoder is not None:
            return self.encoder(src_tokens, src_lengths=src_lengths)
        with torch.no_grad():
            return self.verifier.encoder(src_tokens, src_lengths=src_lengths)

    @torch.no_grad()
    def verifier_states(
        self, src_tokens: Tensor, src_lengths: Tensor, target: Tensor, encoder_out: Any
    ) -> Tensor:
        """``(batch, length, channels)``: row t is the verifier's state that predicts ``y_t``.

        ``encoder_out`` is this drafter's, and is read where it is the verifier's too.
        """
        verifier = self.verifier
        if self.encoder is not None:
            encoder_out = verifier.encoder(src_tokens, src_lengths=src_lengths)
        shifted = torch.cat([torch.full_like(target[:, :1], self.eos), target[:, :-1]], dim=1)
        states, _ = verifier.decoder.extract_features(shifted, encoder_out=encoder_out)
        return states

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor,
        target: Tensor,
        cuts: Tensor,
        glancing_ratio: float = 0.0,
        with_verifier: bool = False,
    ) -> DrafterOutput:
        """Score the blocks of ``target`` ``(batch, length)`` after ``cuts`` ``(batch, blocks)``.

        Args:
            glancing_ratio: part of the wrong slots to reveal; 0 makes a single pass.
            with_verifier: also return the verifier's states, for labels.
        """
        blocks = Blocks.cut(target, cuts, self.block_size, self.decoder.padding)
        encoder_out = self.encode(src_tokens, src_lengths)
        states = None
        if with_verifier or self.uses_verifier_features:
            states = self.verifier_states(src_tokens, src_lengths, target, encoder_out)
        features = states if self.uses_verifier_features else None
        runners = self.decoder.runners()
        table = self.decoder.positions(target.size(1) + self.block_size)
        memory = self.decoder.memory(encoder_out, runners, table)
        revealed = torch.zeros_like(blocks.scored)
        if glancing_ratio > 0:
            with torch.no_grad():
                first = self._score(target, blocks, revealed, runners, table, memory, features)
                predicted = first.argmax(-1)
            uniforms = torch.rand(predicted.shape, device=predicted.device)
            revealed = glance(blocks.gold, predicted, blocks.scored, glancing_ratio, uniforms)
        logits = self._score(target, blocks, revealed, runners, table, memory, features)
        if glancing_ratio <= 0:
            predicted = logits.argmax(-1)
        correct = (predicted == blocks.gold) & blocks.scored
        return DrafterOutput(logits, blocks, blocks.scored & ~revealed, correct, states)

    def _score(
        self,
        target: Tensor,
        blocks: Blocks,
        revealed: Tensor,
        runners: list[DecoderLayerRunner],
        table: Tensor,
        memory: Memory,
        features: Tensor | None,
    ) -> Tensor:
        """Logits ``(batch, blocks, slots, vocab)`` with the ``revealed`` slots given."""
        batch, length = target.shape
        prefix = torch.arange(length, device=target.device).expand(batch, -1)
        positions = torch.cat([prefix, blocks.positions.flatten(1)], dim=1)
        tokens = torch.cat([target, blocks.gold.flatten(1)], dim=1)
        is_mask = torch.cat([torch.zeros_like(target).bool(), ~revealed.flatten(1)], dim=1)
        if features is not None:
            features = F.pad(features, (0, 0, 0, tokens.size(1) - length))
        x = self.decoder.embed(tokens, is_mask, positions, memory, table, features)
        mask = additive(self._allowed(length, blocks)[:, None], x.dtype)
        layers: Any = self.decoder.layers
        attends = [_masked(mask, layer.self_attn) for layer in layers]
        x = self.decoder.run(x, positions, table, runners, attends, memory)
        before = torch.cat([torch.full_like(target[:, :1], self.eos), target], dim=1)
        previous = before.gather(1, blocks.positions.clamp(max=length).flatten(1))
        states = x[:, length:].view(*blocks.gold.shape, -1)
        return self.decoder.slot_logits(states, previous.view_as(blocks.gold))

    def _allowed(self, length: int, blocks: Blocks) -> Tensor:
        """``(batch, slots, slots)``: which slot sees which, in the training layout."""
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
        if self.decoder.causal:
            seen = (prefix <= prefix[:, None]).expand(batch, -1, -1)
            prefix_rows = F.pad(seen, (0, count * size))
        else:
            # One block: a bidirectional prefix sees it, and its own tokens before the cut.
            prefix_rows = F.pad(before_cut, (0, size), value=True).expand(-1, length, -1)
        return torch.cat([prefix_rows, block_rows], dim=1)


def _masked(mask: Tensor, attention: Any) -> Attend:
    """Self-attention among the slots of one training pass."""
    probability = dropout(attention)

    def attend(query: Tensor, key_value: Tensor) -> Tensor:
        keys, values = key_value.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(
            query.transpose(1, 2), keys, values, attn_mask=mask, dropout_p=probability
        )
        return y.transpose(1, 2).flatten(2)

    return attend
