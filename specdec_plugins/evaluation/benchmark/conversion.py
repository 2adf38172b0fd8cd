"""A verifier as a model of CTranslate2's.

Its own converter would open the checkpoint by itself, and cannot: it is given our model, which has
been checked.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerModelBase

from specdec_plugins.checkpoints.archive import one_line
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.evaluation.benchmark.systems import CTRANSLATE2, BenchmarkSystem
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.inference import Translator

logger = logging.getLogger(__name__)

ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_accurate": "GELUTanh",
    "gelu_fast": "GELUTanh",
    "swish": "SWISH",
}


def convert_for(
    systems: list[BenchmarkSystem], verifier: Translator, folder: Path
) -> tuple[list[BenchmarkSystem], Path | None, dict[str, str]]:
    """Convert the verifier where a system asks for that.

    Args:
        verifier: our AR, in float32 on the CPU.
        folder: for the model.

    Returns:
        the systems that there can be, the model's folder, and what is left out and why.
    """
    if not any(system.family == CTRANSLATE2 for system in systems):
        return systems, None, {}
    generator, codec = verifier.generator, verifier.codec
    assert isinstance(generator, SpeculativeGenerator)
    assert generator.model is not None
    model = folder / "model"
    try:
        convert_verifier(generator.model, codec.source, codec.target, model)
    except InferenceError as error:
        logger.warning("%s; goes on without it", error)
        others = [system for system in systems if system.family != CTRANSLATE2]
        return others, None, {CTRANSLATE2: str(error)}
    return systems, model, {}


def convert_verifier(
    verifier: TransformerModelBase, source: Dictionary, target: Dictionary, folder: Path
) -> None:
    """Write the model, in float32.

    Args:
        verifier: on the CPU, in float32, without gradients.
        folder: is made; must not be there.

    Raises:
        InferenceError: CTranslate2 has no such model.
    """
    from ctranslate2.converters import fairseq as converter

    try:
        spec = _layout(verifier)
        converter.set_transformer_encoder(spec.encoder, verifier.encoder)
        converter.set_transformer_decoder(spec.decoder, verifier.decoder)
        spec.register_source_vocabulary(list(source.symbols))
        spec.register_target_vocabulary(list(target.symbols))
        # fairseq's sources end with EOS, and its targets begin with it.
        spec.config.add_source_eos = True
        spec.config.decoder_start_token = spec.config.eos_token
        spec.validate()
        spec.optimize()
        folder.mkdir()
        spec.save(str(folder))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InferenceError(
            f"CTranslate2 cannot take this verifier ({one_line(error)})"
        ) from error


def _layout(verifier: TransformerModelBase) -> Any:
    """The model without weights.

    Raises:
        ValueError: an option that CTranslate2 does not know.
    """
    from ctranslate2.specs import TransformerSpec, common_spec, transformer_spec

    cfg, encoder, decoder = verifier.cfg, verifier.encoder, verifier.decoder
    name = cfg.activation_fn
    if name not in ACTIVATIONS:
        raise ValueError(f"--activation-fn {name}")
    if encoder.embed_positions is None or decoder.embed_positions is None:
        raise ValueError("--no-token-positional-embeddings")
    shared = {"activation": getattr(common_spec.Activation, ACTIVATIONS[name])}
    return TransformerSpec(
        transformer_spec.TransformerEncoderSpec(
            len(encoder.layers),
            cfg.encoder.attention_heads,
            pre_norm=cfg.encoder.normalize_before,
            layernorm_embedding=encoder.layernorm_embedding is not None,
            **shared,
        ),
        transformer_spec.TransformerDecoderSpec(
            len(decoder.layers),
            cfg.decoder.attention_heads,
            pre_norm=cfg.decoder.normalize_before,
            no_final_norm=decoder.layer_norm is None,
            layernorm_embedding=decoder.layernorm_embedding is not None,
            project_in_out=decoder.project_in_dim is not None,
            **shared,
        ),
    )
