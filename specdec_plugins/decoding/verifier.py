"""Cached scoring of several tokens at once with a stock fairseq Transformer's own weights."""

from __future__ import annotations

from typing import Any

import torch
from fairseq.models.transformer import TransformerModelBase
from fairseq.models.transformer.transformer_decoder import TransformerDecoderBase
from torch import Tensor

from specdec_plugins.decoding.draft_tree import DraftTree
from specdec_plugins.decoding.indices import indices
from specdec_plugins.decoding.kv_cache import KVCache
from specdec_plugins.models.encoder_runner import frozen_encoder
from specdec_plugins.models.layers import (
    DecoderLayerRunner,
    position_table,
    positioned,
    projection,
    source_mask,
)


class UnsupportedModelError(ValueError):
    """The model is not one that this decoder can run."""


def check_supported(model: Any) -> None:
    """Refuse, by name, what :class:`CachedVerifier` does not reproduce exactly.

    Raises:
        UnsupportedModelError: names the model or option, and what is supported.
    """
    supported = "the verifier must be a fairseq `transformer` (encoder-decoder)"
    if not isinstance(model, TransformerModelBase) or not isinstance(
        model.decoder, TransformerDecoderBase
    ):
        raise UnsupportedModelError(f"{type(model).__name__}: not supported; {supported}")
    decoder = model.decoder
    if decoder.adaptive_softmax is not None:
        raise UnsupportedModelError(f"--adaptive-softmax-cutoff: not supported; {supported}")
    if decoder.cross_self_attention:
        raise UnsupportedModelError(f"--cross-self-attention: not supported; {supported}")
    for layer in decoder.layers:
        if getattr(layer, "encoder_attn", None) is None:
            raise UnsupportedModelError(f"--no-cross-attention: not supported; {supported}")
        for name in ("attn_ln", "c_attn", "ffn_layernorm", "w_resid"):
            if getattr(layer, name, None) is not None:
                raise UnsupportedModelError(f"{name} (NormFormer): not supported; {supported}")


class CachedVerifier:
    """The verifier's decoder over a batch in which every row makes its own progress.

    Built once for a model; :meth:`start` begins a batch.
    """

    def __init__(self, model: Any, padding: int) -> None:
        check_supported(model)
        self.model = model
        self.decoder = model.decoder
        self.padding = padding
        with torch.no_grad():
            self.encode = frozen_encoder(model.encoder)
            self.runners = [DecoderLayerRunner(layer, True) for layer in self.decoder.layers]
        output = self.decoder.output_projection
        self._project = projection(output.weight, output.bias, frozen=True)
        self._table: Tensor | None = None

    def start(self, encoder_out: dict[str, list[Tensor]], capacity: int) -> None:
        """Begin a batch whose rows will hold at most ``capacity`` cached tokens."""
        states = encoder_out["encoder_out"][0]
        self._memory = [runner.project(states) for runner in self.runners]
        self._mask = source_mask(encoder_out, states.dtype)
        runner = self.runners[0]
        self._cache = KVCache(
            len(self.runners),
            states.size(1),
            capacity,
            runner.heads,
            runner.head_dim,
            states.dtype,
            states.device,
        )
        if self._table is None or len(self._table) < capacity or self._table.dtype != states.dtype:
            self._table = position_table(self.decoder.embed_positions, capacity, self.padding)

    def score(
        self, tokens: Tensor, lengths: Tensor, width: int, tree: DraftTree | None = None
    ) -> tuple[Tensor, Tensor]:
        """Logits after each of ``tokens``, and the states they are computed from.

        Args:
            tokens: ``(rows, slots)``, first the last committed token (EOS at the start), then the
                draft.
            lengths: ``(rows,)`` committed tokens p of each row; its first p cache slots are valid.
            width: the largest ``length + slots`` of any row, known to the host.
            tree: how the draft hangs together; None where each token follows the one before it.

        Returns:
            ``(rows, slots, vocab)`` logits, row j being those of target position p + j (in a tree
            p + the depth of node j), and
            ``(rows, slots, channels)`` the decoder states before the output projection.
        """
        slots = tokens.size(1)
        positions = lengths[:, None] + indices(slots, tokens.device)
        alone = slots == 1 and tokens.size(0) == 1
        if tree is None:
            attends = self._cache.open(positions, positions + 1, width, masked=not alone)
            x = self._embed(tokens, positions)
        else:
            seen = lengths[:, None]
            attends = self._cache.open(positions, seen, width, masked=True, among=tree.ancestors)
            x = self._embed(tokens, seen + tree.depths)
        for runner, attend, memory in zip(self.runners, attends, self._memory):
            x = runner(x, attend, memory, self._mask)
        decoder = self.decoder
        if decoder.layer_norm is not None:
            x = decoder.layer_norm(x)
        if decoder.project_out_dim is not None:
            x = decoder.project_out_dim(x)
        return self._project(x), x

    def _embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        decoder = self.decoder
        x = decoder.embed_scale * decoder.embed_tokens(tokens)
        if decoder.project_in_dim is not None:
            x = decoder.project_in_dim(x)
        if self._table is not None:
            x = positioned(x, positions, self._table)
        if decoder.layernorm_embedding is not None:
            x = decoder.layernorm_embedding(x)
        return x

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Line up what :meth:`score` cached of a tree: copy positions ``(rows, slots)``."""
        self._cache.copy(sources, targets)

    def keep(self, rows: Tensor, width: int) -> None:
        """Go on with ``rows`` only, of which at most ``width`` cache slots are valid."""
        self._cache.keep(rows, width)
        self._memory = [(keys[rows], values[rows]) for keys, values in self._memory]
        if self._mask is not None:
            self._mask = self._mask[rows]
