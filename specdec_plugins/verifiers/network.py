"""The network of a folder of transformers, as fairseq's Transformer."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

import torch
from torch import Tensor

from specdec_plugins.files.errors import CheckpointError
from specdec_plugins.verifiers.family import ACTIVATIONS, EOS, Family
from specdec_plugins.verifiers.folder import AGAIN, CONFIG, read_weights

#: Added to the logit of a token that is never put out; finite, also in float16.
BANNED = -1e4
#: Names of tables of embeddings in a folder, without ``model.``.
SHARED = "shared.weight"
SOURCE = "encoder.embed_tokens.weight"
TARGET = "decoder.embed_tokens.weight"
HEAD = "lm_head.weight"
BIAS = "final_logits_bias"
#: The names of fairseq's output projection, whose bias stock fairseq lacks.
OUTPUT = "decoder.output_projection.weight"
OUTPUT_BIAS = "decoder.output_projection.bias"
#: The version of fairseq's Transformers with a norm after the last layer.
VERSION = 3.0


def network_of(family: Family) -> tuple[Namespace, dict[str, Tensor]]:
    """Return fairseq's options of a family's network, and its weights by fairseq's names.

    fairseq's targets begin with EOS, which a decoder reads nowhere else: another start token's
    embedding takes its place. A bias of the output becomes :data:`OUTPUT_BIAS`.

    Raises:
        CheckpointError: an option that fairseq lacks, or a weight that is missing or does not fit.
    """
    config = family.config
    tensors = {
        name.removeprefix("model."): tensor for name, tensor in read_weights(family.folder).items()
    }
    tied = config.tie_word_embeddings
    joint = config.share_encoder_decoder_embeddings
    begins = family.start == config.eos_token_id
    first = [SHARED] if tied and joint else []
    encoder = _table(family, tensors, [*first, SOURCE, SHARED, TARGET], "source")
    read = output = _table(family, tensors, [*first, TARGET, SHARED, HEAD], "target")
    order = family.order("target")
    if not tied:
        output = _table(family, tensors, [HEAD], "target")
    if not begins:
        read = read.clone()
        read[EOS] = read[order.index(family.start)]
    weights = {
        name: tensor
        for name, tensor in tensors.items()
        if name not in (SHARED, SOURCE, TARGET, HEAD, BIAS) and not name.endswith(".weights")
    }
    weights |= family.positions(tensors)
    weights |= {SOURCE: encoder, TARGET: read, OUTPUT: output}
    saved_bias = tensors.get(BIAS, torch.zeros(1, family.size("target")))
    bias = _bias(family, saved_bias, order)
    if bool(bias.any()):
        weights[OUTPUT_BIAS] = bias
    weights["encoder.version"] = weights["decoder.version"] = torch.tensor([VERSION])
    options = _options(family)
    options.share_decoder_input_output_embed = tied and begins
    options.share_all_embeddings = joint and options.share_decoder_input_output_embed
    return options, weights


def _options(family: Family) -> Namespace:
    config = family.config
    return Namespace(
        **family.options,
        encoder_embed_dim=config.d_model,
        decoder_embed_dim=config.d_model,
        encoder_ffn_embed_dim=config.encoder_ffn_dim,
        decoder_ffn_embed_dim=config.decoder_ffn_dim,
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        encoder_attention_heads=config.encoder_attention_heads,
        decoder_attention_heads=config.decoder_attention_heads,
        arch="transformer",
        _name="transformer",
        activation_fn=ACTIVATIONS[config.activation_function],
        no_scale_embedding=not config.scale_embedding,
        max_source_positions=config.max_position_embeddings,
        max_target_positions=config.max_position_embeddings,
    )


def _table(family: Family, tensors: dict[str, Tensor], names: Sequence[str], side: str) -> Tensor:
    """Return the first of some weights that the folder has, ``(tokens, channels)``, its rows in
    fairseq's order."""
    table = next((tensors[name] for name in names if name in tensors), None)
    shape = (family.size(side), family.config.d_model)
    if table is None or table.shape != shape:
        raise CheckpointError(
            f"{family.folder}: its weights have no {names[0]} of {shape[0]} rows of {shape[1]}, "
            f"as {CONFIG} says; {AGAIN}"
        )
    return _ordered(table, family.order(side))


def _ordered(rows: Tensor, order: Sequence[int]) -> Tensor:
    """Return rows in fairseq's order; a row that the folder lacks is zero."""
    if list(order) == list(range(len(rows))):
        return rows
    with_blank = torch.cat([rows, torch.zeros_like(rows[:1])])
    return with_blank[torch.tensor(order)]


def _bias(family: Family, saved: Tensor, order: Sequence[int]) -> Tensor:
    """Return ``(tokens,)`` the output's bias.

    It also bans tokens: those that the folder bans, and those that it lacks. PAD is always banned.
    """
    if saved.shape != (1, family.size("target")):
        raise CheckpointError(f"{family.folder}: the weight {BIAS} is of another size; {AGAIN}")
    banned = {*family.generation.banned(), -1} - {family.config.pad_token_id}
    bias = _ordered(saved[0].float(), order).clone()
    bias[torch.tensor([number in banned for number in order])] = BANNED
    return bias


def fold_bias(options: Namespace, weights: dict[str, Tensor]) -> None:
    """Fold the bias of an output into the weights before it, which stock fairseq has; in place.

    The last layer norm returns ``w * n + b``, where the channels of ``n`` sum to 0. With 1 for
    ``w`` and ``b`` the channels sum to their number, so that a constant in each row of the output
    projection ``V`` adds a bias to its logit: ``V(w * n + b) + bias = (V * w + u)(n + 1)``.
    """
    bias = weights.pop(OUTPUT_BIAS, None)
    if bias is None:
        return
    norm = "decoder.layer_norm"
    if not options.decoder_normalize_before:
        norm = f"decoder.layers.{options.decoder_layers - 1}.final_layer_norm"
    output, scale, shift = (
        weights[name].double() for name in (OUTPUT, f"{norm}.weight", f"{norm}.bias")
    )
    scaled = output * scale
    constants = (output @ shift + bias - scaled.sum(1)) / len(scale)
    weights[f"{norm}.weight"] = weights[f"{norm}.bias"] = torch.ones(len(scale))
    weights[OUTPUT] = (scaled + constants[:, None]).float()
    options.share_decoder_input_output_embed = False
    options.share_all_embeddings = False
