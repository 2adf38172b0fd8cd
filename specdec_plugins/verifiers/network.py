"""The network of a folder of transformers, as fairseq's Transformer."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

import torch
from torch import Tensor

from specdec_plugins.files.errors import CheckpointError
from specdec_plugins.host.activations import SWISH
from specdec_plugins.verifiers.family import BOS, EOS, PAD, UNK, Family
from specdec_plugins.verifiers.folder import AGAIN, read_weights

#: fairseq's names of transformers' activations.
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_accurate",
    "swish": SWISH,
    "silu": SWISH,
}
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
    saved = read_weights(family.folder)
    found = {name.removeprefix("model."): tensor for name, tensor in saved.items()}
    tied, joint = config.tie_word_embeddings, config.share_encoder_decoder_embeddings
    begins = family.start == config.eos_token_id
    first = [SHARED] if tied and joint else []
    encoder = _table(family, found, [*first, SOURCE, SHARED, TARGET], "source")
    decoder = _table(family, found, [*first, TARGET, SHARED, HEAD], "target")
    output = decoder if tied else _table(family, found, [HEAD], "target")
    order = family.order("target")
    read = _ordered(decoder, order)
    if not begins:
        read = read.clone()
        read[EOS] = decoder[family.start]
    weights = {
        name: tensor
        for name, tensor in found.items()
        if name not in (SHARED, SOURCE, TARGET, HEAD, BIAS) and not name.endswith(".weights")
    }
    weights |= family.positions(found)
    weights |= {SOURCE: _ordered(encoder, family.order("source")), TARGET: read}
    weights[OUTPUT] = read if output is decoder and begins else _ordered(output, order)
    if (bias := _bias(family, found.get(BIAS), order)) is not None:
        weights[OUTPUT_BIAS] = bias
    weights |= {f"{side}.version": torch.tensor([VERSION]) for side in ("encoder", "decoder")}
    options = _options(family)
    options.share_decoder_input_output_embed = tied and begins
    options.share_all_embeddings = tied and begins and joint
    return options, weights


def _options(family: Family) -> Namespace:
    config = family.config
    activation = ACTIVATIONS.get(config.activation_function)
    if activation is None:
        raise family.fault(f"activation_function {config.activation_function!a}: is not supported")
    options = dict(family.options)
    for side in ("encoder", "decoder"):
        options |= {
            f"{side}_embed_dim": config.d_model,
            f"{side}_ffn_embed_dim": getattr(config, f"{side}_ffn_dim"),
            f"{side}_layers": getattr(config, f"{side}_layers"),
            f"{side}_attention_heads": getattr(config, f"{side}_attention_heads"),
        }
    return Namespace(
        **options,
        arch="transformer",
        _name="transformer",
        activation_fn=activation,
        no_scale_embedding=not config.scale_embedding,
        max_source_positions=config.max_position_embeddings,
        max_target_positions=config.max_position_embeddings,
    )


def _table(family: Family, found: dict[str, Tensor], names: Sequence[str], side: str) -> Tensor:
    """Return the first of some weights that the folder has, ``(tokens, channels)``."""
    name = next((name for name in names if name in found), None)
    if name is None:
        raise CheckpointError(f"{family.folder}: its weights lack {names[0]}; {AGAIN}")
    shape = (family.size(side), family.config.d_model)
    if found[name].shape != shape:
        fault = f"is of the size {(*found[name].shape,)}, and config.json says {shape}"
        raise CheckpointError(f"{family.folder}: the weight {name} {fault}; {AGAIN}")
    return found[name]


def _ordered(rows: Tensor, order: Sequence[int]) -> Tensor:
    """Return rows in fairseq's order; a row that the folder lacks is zero."""
    if list(order) == list(range(len(rows))):
        return rows
    return torch.cat([rows, rows.new_zeros(1, *rows.shape[1:])])[torch.tensor(order)]


def _bias(family: Family, saved: Tensor | None, order: Sequence[int]) -> Tensor | None:
    """Return ``(tokens,)`` the output's bias; None where it would be zero.

    It also bans tokens: those that the folder bans, and those that it lacks. PAD is always banned.
    """
    numbers = {number: index for index, number in enumerate(order) if number >= 0}
    banned = [numbers[token] for token in family.generation.banned() if token in numbers]
    banned += [index for index in (BOS, UNK) if order[index] < 0]
    if saved is None:
        saved = torch.zeros(1, len(order))
    if saved.shape != (1, family.size("target")):
        raise CheckpointError(f"{family.folder}: the weight {BIAS} is of another size; {AGAIN}")
    bias = _ordered(saved[0].float(), order)
    bias = bias.clone()
    bias[[index for index in banned if index != PAD]] = BANNED
    return bias if bool(bias.any()) else None
