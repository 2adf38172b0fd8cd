"""A verifier as a model of CTranslate2's, made anew by every process (a second).

Its own converter would open the checkpoint by itself, and cannot: it is given our model, which has
been checked.
"""

from __future__ import annotations

import logging
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerModelBase
from torch import Tensor

from specdec_plugins.checkpoints.archive import one_line
from specdec_plugins.checkpoints.multilingual import LanguageTokens
from specdec_plugins.decoding.build import build_generator
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.warm_up import made_up
from specdec_plugins.files.errors import ConversionError, explained

if TYPE_CHECKING:
    from ctranslate2 import Translator
    from ctranslate2.specs import TransformerSpec

logger = logging.getLogger(__name__)

ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_accurate": "GELUTanh",
    "gelu_fast": "GELUTanh",
    "swish": "SWISH",
}


CHECKED = 8
"""Made-up sentences on which a converted model is checked."""
TRIED = 16
"""Tokens of the made-up sentence, EOS included, by which the number of threads is chosen."""
TOLERATED = 1e-3
"""Difference of a token's log-probability; rounding in float32 stays below a hundredth of it."""


def refuse_languages(tokens: LanguageTokens) -> None:
    """
    Raises:
        ConversionError: there are some, which it does not put where fairseq does.
    """
    if tokens != LanguageTokens():
        raise ConversionError("it cannot do language tokens")


def is_installed() -> bool:
    """Whether CTranslate2 can be had."""
    return find_spec("ctranslate2") is not None


def load_model(
    verifier: TransformerModelBase,
    dictionaries: tuple[Dictionary, Dictionary],
    precision: str,
    device: str,
    rows: int,
) -> tuple[Translator, int]:
    """A ``ctranslate2.Translator``, and the threads that it has: on a CPU as many as torch, or one
    if that is faster here. On a virtual machine two can take several times as long as one.

    Args:
        verifier: on the CPU, in float32, without gradients.
        precision: one that CTranslate2 has on this device.
        dictionaries: the source's and the target's.
        device: ``cpu`` or ``cuda``, that it is opened on once it has been checked.
        rows: sentences of the batches to come, by which threads are tried.

    Raises:
        ConversionError: CTranslate2 has no such model, or makes something else of it, or there is
            no room to write it.
    """
    source, target = dictionaries
    longest = int(min(verifier.encoder.max_positions(), verifier.decoder.max_positions()))
    ids = made_up(source, 1, min(TRIED, longest))["net_input"]["src_tokens"][0]
    batch = [symbols(source, ids[:-1])] * rows
    begin = time.perf_counter()
    fault = f"its model cannot be written to {tempfile.gettempdir()}"
    with (
        explained(fault, "TMPDIR names another folder", ConversionError),
        tempfile.TemporaryDirectory(prefix="specdec-") as folder,
    ):
        convert_verifier(verifier, source, target, Path(folder) / "model")
        parts = {file.name: file.read_bytes() for file in (Path(folder) / "model").iterdir()}
    _check(_open(parts, "float32", "cpu", 1), verifier, source, target)
    logger.info("CTranslate2 has the verifier after %.1f s", time.perf_counter() - begin)
    return _open_fastest(parts, precision, device, batch)


def _open_fastest(
    parts: dict[str, bytes], precision: str, device: str, batch: list[list[str]]
) -> tuple[Translator, int]:
    """Open a model by one thread or by torch's number, whichever needs less time for a batch: the
    least of a few trials in turn. What it says depends on that in near-ties only.

    Returns:
        the model, and its threads.
    """
    counts = sorted({1, torch.get_num_threads()}) if device == "cpu" else [1]
    models = [_open(parts, precision, device, count) for count in counts]
    if len(models) == 1:
        return models[0], counts[0]
    length = {"min_decoding_length": len(batch[0]), "max_decoding_length": len(batch[0])}

    def seconds(model: Translator) -> float:
        begin = time.perf_counter()
        model.translate_batch(batch, beam_size=1, **length)
        return time.perf_counter() - begin

    # The first trial is a warm-up.
    trials = [[seconds(model) for model in models] for _ in range(4)][1:]
    least = [min(taken) for taken in zip(*trials)]
    best = least.index(min(least))
    return models[best], counts[best]


def _open(parts: dict[str, bytes], precision: str, device: str, threads: int) -> Translator:
    """Open a model from the contents of its files, by name."""
    import ctranslate2

    return ctranslate2.Translator(
        "verifier",
        device=device,
        compute_type=precision,
        inter_threads=1,
        intra_threads=threads,
        files=parts,
    )


def _check(
    model: Translator, verifier: TransformerModelBase, source: Dictionary, target: Dictionary
) -> None:
    """Compare, on made-up sentences, what each gives every token of our AR's output.

    Raises:
        ConversionError: they differ by more than rounding.
    """
    longest = int(min(verifier.encoder.max_positions(), verifier.decoder.max_positions()))
    batch = made_up(source, CHECKED, min(12, longest))
    limits = GenerationLimits(max_len_b=min(16, longest - 1))
    rows = build_generator(verifier, None, target, limits=limits).generate([], batch)
    sentences = [symbols(source, ids[:-1]) for ids in batch["net_input"]["src_tokens"]]
    outputs = [symbols(target, best[0]["tokens"][:-1]) for best in rows]
    scored = model.score_batch(sentences, outputs, max_input_length=0)
    for own, theirs in zip((best[0]["positional_scores"] for best in rows), scored, strict=True):
        if not torch.allclose(own, torch.tensor(theirs.log_probs), rtol=0, atol=TOLERATED):
            raise ConversionError("CTranslate2 makes something else of this verifier")


def symbols(dictionary: Dictionary, ids: Tensor) -> list[str]:
    """The symbols of ``(length,)`` ids."""
    return [dictionary[i] for i in ids.tolist()]


def convert_verifier(
    verifier: TransformerModelBase, source: Dictionary, target: Dictionary, folder: Path
) -> None:
    """Write the model, in float32.

    Args:
        verifier: on the CPU, in float32, without gradients.
        folder: is made; must not be there.

    Raises:
        ConversionError: CTranslate2 has no such model.
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
        raise ConversionError(
            f"CTranslate2 cannot take this verifier ({one_line(error)})"
        ) from error


def _layout(verifier: TransformerModelBase) -> TransformerSpec:
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
