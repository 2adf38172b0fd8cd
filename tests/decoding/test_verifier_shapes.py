"""Strict output is that of beam 1 for verifiers of every shape that stock fairseq trains."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
import torch
from conftest import make_batch, make_dictionary, make_task
from drafters import SIZES
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.models.transformer import TransformerModel
from fairseq.sequence_generator import SequenceGenerator
from scripted import attach, corrupted

from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import GenerationLimits

PRE_NORM = {"encoder_normalize_before": True, "decoder_normalize_before": True}
LEARNED = {"encoder_learned_pos": True, "decoder_learned_pos": True}
# Of the named architectures everything but the sizes is as it comes.
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "post-norm, sinusoidal": ("transformer", {}),
    "pre-norm": ("transformer", PRE_NORM),
    "learned positions": ("transformer", LEARNED),
    "pre-norm, learned positions": ("transformer", {**PRE_NORM, **LEARNED}),
    "one table": ("transformer", {"share_all_embeddings": True}),
    "tied output": ("transformer", {"share_decoder_input_output_embed": True}),
    "two dictionaries": ("transformer", {"target_words": 27}),
    "embedding norm": ("transformer", {"layernorm_embedding": True}),
    "deep and shallow": ("transformer", {"encoder_layers": 5, "decoder_layers": 1}),
    "unequal widths": (
        "transformer",
        {"encoder_embed_dim": 24, "encoder_ffn_embed_dim": 40, "decoder_attention_heads": 4},
    ),
    "transformer_wmt_en_de": ("transformer_wmt_en_de", {}),
    "transformer_iwslt_de_en": ("transformer_iwslt_de_en", {}),
    "transformer_tiny": ("transformer_tiny", {}),
    "transformer_vaswani_wmt_en_de_big": ("transformer_vaswani_wmt_en_de_big", {}),
}


def build(arch: str, overrides: dict[str, Any]) -> Any:
    """A random verifier in float64."""
    torch.manual_seed(0)
    settings = {**SIZES, **overrides}
    target_words = settings.pop("target_words", None)
    args = Namespace(**settings)
    ARCH_CONFIG_REGISTRY[arch](args)
    task = make_task()
    if target_words:
        task.target_dictionary = make_dictionary(target_words)
    model = TransformerModel.build_model(args, task)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model.double().eval()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [[6], [7, 2, 5, 9]])
def test_strict_equals_beam_1(shape: str, rows: list[int]) -> None:
    model = build(*SHAPES[shape])
    dictionary = model.decoder.dictionary
    batch = make_batch(rows, seed=2)
    stock = SequenceGenerator([model], dictionary, beam_size=1, max_len_b=14)
    expected = [hypotheses[0] for hypotheses in stock.generate([model], batch)]
    generator = SpeculativeGenerator(model, None, dictionary, limits=GenerationLimits(max_len_b=14))
    attach(generator, corrupted(expected, 15, 0.3, len(dictionary), seed=1), 4)
    for (ours,), theirs in zip(generator.generate([], batch), expected, strict=True):
        assert ours["tokens"].tolist() == theirs["tokens"].tolist()
        torch.testing.assert_close(
            ours["positional_scores"].float(), theirs["positional_scores"], atol=1e-4, rtol=1e-4
        )
    assert 0 < generator.statistics.accepted_tokens < generator.statistics.drafted_tokens
