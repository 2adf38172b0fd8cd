"""Facts about a loaded verifier, as lines to read."""

from __future__ import annotations

from collections.abc import Iterator

from fairseq.modules import LearnedPositionalEmbedding

from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.files.errors import counted
from specdec_plugins.inference.translator import Translator


def describe(translator: Translator) -> Iterator[str]:
    """Yield a line each for encoder, decoder, dictionaries and language tokens."""
    assert isinstance(translator.generator, SpeculativeGenerator)
    model = translator.generator.model
    assert model is not None
    for name, part in (("encoder", model.encoder), ("decoder", model.decoder)):
        layer, positions = part.layers[0], part.embed_positions
        learned = isinstance(positions, LearnedPositionalEmbedding)
        kind = "no" if positions is None else "learned" if learned else "sinusoidal"
        yield (
            f"{name}: {counted(len(part.layers), 'layer')} of width {layer.fc1.in_features}, "
            f"feed-forward {layer.fc1.out_features}, {counted(layer.self_attn.num_heads, 'head')}, "
            f"{'pre' if layer.normalize_before else 'post'}-norm"
            f"{', a norm on embeddings' if part.layernorm_embedding is not None else ''}, "
            f"{kind} positions, at most {part.max_positions()} tokens"
        )
    tables = {
        "source": model.encoder.embed_tokens.weight,
        "target": model.decoder.embed_tokens.weight,
        "output": model.decoder.output_projection.weight,
    }
    everywhere = list(map(id, tables.values()))
    shared = [name for name, table in tables.items() if everywhere.count(id(table)) > 1]
    codec, settings = translator.codec, translator.settings
    yield (
        f"dictionaries: {settings.source_lang} {len(codec.source)} and "
        f"{settings.target_lang} {len(codec.target)} entries; "
        + (f"{', '.join(shared)} share a table" if shared else "tables are separate")
    )
    tokens = codec.tokens
    if tokens.source is not None:
        where = "in place of a source's EOS" if tokens.replace_eos else "before a source"
        yield f"language token: {codec.source[tokens.source]} {where}"
    if tokens.target is not None:
        where = "in place of" if tokens.replace_eos else "after"
        yield f"language token: {codec.target[tokens.target]} {where} the first EOS of targets"
