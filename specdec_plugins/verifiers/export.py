"""Folders of transformers as fairseq has it, and a fairseq Transformer as such a folder."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from io import StringIO
from operator import attrgetter
from pathlib import Path

import msgspec
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerModelBase

from specdec_plugins.files.errors import CheckpointError
from specdec_plugins.files.output import Location, whole_file, write_json, write_whole
from specdec_plugins.verifiers.families import family_of
from specdec_plugins.verifiers.family import ACTIVATIONS, BOS, EOS, PAD, Config
from specdec_plugins.verifiers.folder import CONFIG, WEIGHTS
from specdec_plugins.verifiers.generation import GENERATION, Generation
from specdec_plugins.verifiers.m2m import M2M
from specdec_plugins.verifiers.network import SHARED

logger = logging.getLogger(__name__)

#: Marian's target languages among the tokens of its source.
CODE = re.compile(">>.+<<")
#: transformers' names of fairseq's activations.
NAMES = {name: other for other, name in ACTIVATIONS.items()}
#: fairseq's options of an M2M-100's network: the value, and what it stands for.
NETWORK = {
    "share_all_embeddings": (True, "--share-all-embeddings"),
    "encoder.normalize_before": (True, "--encoder-normalize-before"),
    "decoder.normalize_before": (True, "--decoder-normalize-before"),
    "encoder.learned_pos": (False, "positions by formula"),
    "decoder.learned_pos": (False, "positions by formula"),
    "no_token_positional_embeddings": (False, "positions"),
    "layernorm_embedding": (False, "no --layernorm-embedding"),
}
#: Weights that an M2M-100 has not, or has as the shared table.
LEFT_OUT = re.compile(
    r"(^|\.)(version|embed_positions\.\w+|embed_tokens\.weight|output_projection\.weight"
    r"|layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias))$"
)


def write_dictionaries(folder: Location, target: Path, languages: Sequence[str]) -> list[Path]:
    """Write a folder's dictionaries and segmentation beside a checkpoint made of it.

    Returns:
        The files that are written.

    Raises:
        CheckpointError: it has no file by which fairseq segments.
    """
    family = family_of(folder)
    if family.saved is not None:
        raise CheckpointError(
            f"{folder}: fairseq does not segment by tokenizer.json; add its other files of text"
        )
    codes = [symbol for symbol in family.tokens("source") if CODE.fullmatch(symbol)]
    if codes:
        logger.warning(
            "%s: lines begin with a target language such as %s, which fairseq's segmentation "
            "takes apart; translate by the folder",
            folder,
            codes[0],
        )
    files = {}
    for side, language in zip(("source", "target"), languages):
        lines = StringIO()
        family.dictionary(side).save(lines)
        files[target / f"dict.{language}.txt"] = lines.getvalue().encode()
    for name in family.segmentation.values():
        if (family.folder / name).is_file():
            files[target / name] = (family.folder / name).read_bytes()
            files[target / "segmentation.json"] = msgspec.json.encode(family.segmentation)
    for path, content in files.items():
        write_whole(path, [content])
    return [*files]


def write_folder(
    verifier: TransformerModelBase, dictionary: Dictionary, languages: Sequence[str], folder: Path
) -> None:
    """Write a fairseq Transformer of one direction as an M2M-100 of transformers.

    Raises:
        CheckpointError: the network is none.
    """
    from safetensors.torch import save

    for name in _lacking(verifier):
        raise CheckpointError(f"--to transformers: an M2M-100 has {name}; the model has not")
    config = _config_of(verifier, len(dictionary))
    # As fairseq's search is limited: 200 tokens, of which the first is not EOS.
    generation = Generation(
        max_length=202, min_length=2, forced_eos_token_id=EOS, bad_words_ids=[[PAD]]
    )
    files = {
        CONFIG: {
            **msgspec.to_builtins(config),
            "scale_embedding": config.scale_embedding,
            "model_type": M2M.model_type,
            "architectures": ["M2M100ForConditionalGeneration"],
            "is_encoder_decoder": True,
        },
        GENERATION: {
            **msgspec.to_builtins(generation),
            "bos_token_id": BOS,
            "pad_token_id": PAD,
            "eos_token_id": EOS,
            "decoder_start_token_id": EOS,
        },
        "vocab.json": {symbol: index for index, symbol in enumerate(dictionary.symbols)},
        "tokenizer_config.json": dict(zip(("src_lang", "tgt_lang"), languages)),
    }
    for name, value in files.items():
        write_json(folder / name, value)
    weights = {
        f"model.{name}": tensor.contiguous()
        for name, tensor in verifier.state_dict().items()
        if not LEFT_OUT.search(name)
    }
    weights[f"model.{SHARED}"] = verifier.encoder.embed_tokens.weight
    with whole_file(folder / WEIGHTS[0]) as file:
        file.write(save(weights, {"format": "pt"}))


def _config_of(verifier: TransformerModelBase, size: int) -> Config:
    cfg = verifier.cfg
    return Config(
        vocab_size=size,
        d_model=cfg.decoder.embed_dim,
        encoder_layers=len(verifier.encoder.layers),
        decoder_layers=len(verifier.decoder.layers),
        encoder_attention_heads=cfg.encoder.attention_heads,
        decoder_attention_heads=cfg.decoder.attention_heads,
        encoder_ffn_dim=cfg.encoder.ffn_embed_dim,
        decoder_ffn_dim=cfg.decoder.ffn_embed_dim,
        max_position_embeddings=min(verifier.max_positions()),
        activation_function=NAMES[cfg.activation_fn],  # type: ignore[arg-type]
        scale_embedding=not cfg.no_scale_embedding,
        bos_token_id=BOS,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=EOS,
    )


def _lacking(verifier: TransformerModelBase) -> Iterator[str]:
    """Yield what an M2M-100 has and a network has not."""
    for option, (value, name) in NETWORK.items():
        if bool(attrgetter(option)(verifier.cfg)) != value:
            yield name
    if verifier.cfg.activation_fn not in NAMES:
        yield "another --activation-fn"
    # Which those of old checkpoints have not, whatever their options say.
    if verifier.encoder.layer_norm is None or verifier.decoder.layer_norm is None:
        yield "a norm after the last layer"
    if verifier.decoder.output_projection.bias is not None:
        yield "no bias of its output"
