"""Recipes of a drafter and a head, sized from their verifier."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import yaml
from fairseq.models.transformer import TransformerModelBase
from fairseq.modules import LearnedPositionalEmbedding

from specdec_plugins.files.output import JsonObject, write_whole
from specdec_plugins.inference.pair_folder import DRAFTER
from specdec_plugins.jobs.make_pair.job import PairJob
from specdec_plugins.jobs.make_pair.training import WARMUP, Plan
from specdec_plugins.machine import processor_name

Groups = dict[str, JsonObject]

PEAK, WIDTH = 2e-3, 384
"""Highest learning rate, up to this width; wider drafters take less, in proportion."""
HEAD_LINES = "valid1"
"""The lines of a head among binarised text: fairseq's name for the second validation set."""
FEATURE_LAYERS = 2
"""The first layers of the verifier's decoder whose states are read beside its last."""
BFLOAT16 = ("avx512_bf16", "amx")
"""Processors that multiply matrices faster in bfloat16 than in float32."""


def drafter_recipe(verifier: TransformerModelBase, job: PairJob, plan: Plan) -> Groups:
    """Return the settings of a drafter's training.

    They were measured to learn fastest; widths are the verifier's.
    """
    kind = _published(verifier) if job.arch == "block" else _ours(verifier)
    positions = int(verifier.decoder.max_positions()) + int(kind["task"]["block_size"])
    autocast = job.on_cpu and any(name in processor_name() for name in BFLOAT16)
    drafter: Groups = {
        "task": {
            "max_source_positions": int(verifier.encoder.max_positions()),
            "max_target_positions": positions,
            **({"autocast": "bfloat16"} if autocast else {}),
        },
        "dataset": {"max_tokens_valid": 16000},
        "checkpoint": {
            "keep_interval_updates": 1,
            "best_checkpoint_metric": "acceptance_length",
            "maximize_best_checkpoint_metric": True,
        },
    }
    return merged(_base(job, plan), kind, drafter)


def head_recipe(job: PairJob, plan: Plan) -> Groups:
    """Return the settings of an acceptance head's training: those of the shipped pairs' heads."""
    drafter = job.layout.pair / DRAFTER
    head: Groups = {
        "task": {"blocks_per_sentence": 1 if job.arch == "block" else 4},
        "model": {
            "_name": "acceptance_head",
            "drafter": str(drafter.absolute()),
            "head_layers": 0,
        },
        "criterion": {"_name": "acceptance_loss", "mismatch_weight": 6.0},
        "optimizer": {"_name": "adam", "adam_betas": "(0.9, 0.98)", "weight_decay": 0.01},
        "optimization": {"lr": [0.005], "clip_norm": 1.0},
        "dataset": {"train_subset": HEAD_LINES, "max_tokens": 1500, "max_tokens_valid": 4000},
    }
    return merged(_base(job, plan), head)


def _base(job: PairJob, plan: Plan) -> Groups:
    """Return the settings of every training, all lengths by ``--max-update``."""
    never, until = 10**6, "${optimization.max_update}"
    source, target = job.languages
    return {
        "common": {
            "user_dir": "specdec_plugins",
            "seed": 1,
            "log_format": "json",
            "log_interval": max(1, min(10, plan.updates // 4)),
            "cpu" if job.on_cpu else "fp16": True,
        },
        "task": {
            "_name": "translation_specdec",
            "AR_path": str(job.layout.verifier.absolute()),
            "source_lang": source,
            "target_lang": target,
            "total_up": until,
            **job.rule_options,
        },
        "lr_scheduler": {
            "_name": "polynomial_decay",
            "warmup_updates": max(1, min(WARMUP, plan.updates // 10)),
            "total_num_update": until,
        },
        "optimization": {"max_update": plan.updates, "stop_time_hours": round(plan.hours, 5)},
        "dataset": {
            "validate_interval": never,
            "validate_interval_updates": plan.interval,
            "skip_invalid_size_inputs_valid_test": True,
            **({"num_workers": 0} if job.on_cpu else {}),
            **({"ignore_unused_valid_subsets": True} if job.heads else {}),  # HEAD_LINES
        },
        "checkpoint": {
            "save_interval": never,
            "save_interval_updates": plan.interval,
            "no_epoch_checkpoints": True,
        },
    }


def merged(*recipes: Groups) -> Groups:
    """Return the settings of several recipes; the last counts."""
    result: Groups = {}
    for group, values in chain.from_iterable(recipe.items() for recipe in recipes):
        result[group] = {**result.get(group, {}), **values}
    return result


def _ours(verifier: TransformerModelBase) -> Groups:
    decoder = verifier.decoder
    layer, width = decoder.layers[0], int(decoder.output_embed_dim)
    model = {
        "_name": "block_causal",
        "verifier_features": True,
        "previous_token_head": True,
        "verifier_embed_dim": width,
        "decoder_layers": 2,
        "decoder_embed_dim": width,
        "decoder_ffn_embed_dim": 2 * width,
        "decoder_attention_heads": int(layer.self_attn.num_heads),
        "decoder_normalize_before": True,
        "dropout": 0.0,
    }
    if {int(item.embed_dim) for item in decoder.layers} == {width} and len(decoder.layers) > 1:
        count = min(FEATURE_LAYERS, len(decoder.layers) - 1)
        model["verifier_feature_layers"] = ",".join(map(str, range(1, count + 1)))
    if decoder.embed_tokens.embedding_dim == width:
        model["share_verifier_encoder"] = True
        model["encoder_embed_dim"] = int(verifier.encoder.layers[0].embed_dim)
    else:
        model |= _copied_encoder(verifier)
    return {
        "task": {"block_size": 8, "blocks_per_sentence": 4, "start_p": 0.0, "minus_p": 0.0},
        "model": model,
        "criterion": {"_name": "glat_loss", "verifier_labels": True, "slot_decay": 4.0},
        "optimizer": {"_name": "adam", "adam_betas": "(0.9, 0.98)"},
        "optimization": {"lr": [round(PEAK * min(1.0, WIDTH / width), 6)], "clip_norm": 1.0},
        "dataset": {"max_tokens": 6500},
    }


def _published(verifier: TransformerModelBase) -> Groups:
    """Return SpecDec's drafter (Xia et al., EMNLP 2023 Findings), with its k, glancing, smoothing
    and optimizer."""
    encoder = _copied_encoder(verifier)
    width, heads = encoder["encoder_embed_dim"], encoder["encoder_attention_heads"]
    shared = verifier.encoder.dictionary == verifier.decoder.dictionary
    model = {
        "_name": "block",
        **encoder,
        "encoder_learned_pos": True,
        "src_embedding_copy": True,
        "apply_bert_init": True,
        "activation_fn": "gelu",
        "decoder_layers": len(verifier.decoder.layers),
        "decoder_embed_dim": width,
        "decoder_ffn_embed_dim": encoder["encoder_ffn_embed_dim"],
        "decoder_attention_heads": heads,
        "decoder_learned_pos": True,
        "share_all_embeddings" if shared else "share_decoder_input_output_embed": True,
        "dropout": 0.1,
    }
    if "encoder_normalize_before" in encoder:
        model["decoder_normalize_before"] = True
    adam = {"adam_betas": "(0.9, 0.999)", "adam_eps": 1e-06, "weight_decay": 0.01}
    return {
        "task": {"noise": "block_mask", "block_size": 25, "start_p": 0.5, "minus_p": 0.2},
        "model": model,
        "criterion": {"_name": "glat_loss", "label_smoothing": 0.1},
        "optimizer": {"_name": "adam", **adam},
        "optimization": {"lr": [5e-4], "clip_norm": 5.0},
        "dataset": {"max_tokens": 3250},
    }


def _copied_encoder(verifier: TransformerModelBase) -> JsonObject:
    encoder = verifier.encoder
    layer = encoder.layers[0]
    switches = {
        "encoder_normalize_before": bool(layer.normalize_before),
        "encoder_learned_pos": isinstance(encoder.embed_positions, LearnedPositionalEmbedding),
        "layernorm_embedding": encoder.layernorm_embedding is not None,
        "no_scale_embedding": encoder.embed_scale == 1,
    }
    return {
        "init_encoder_from": "${task.AR_path}",
        "encoder_layers": len(encoder.layers),
        "encoder_embed_dim": int(layer.embed_dim),
        "encoder_ffn_embed_dim": int(layer.fc1.out_features),
        "encoder_attention_heads": int(layer.self_attn.num_heads),
        **{name: True for name, on in switches.items() if on},
    }


def write_recipe(groups: Groups, path: Path) -> None:
    """Write a recipe for ``specdec-train --recipe`` and ``fairseq-hydra-train``."""
    write_whole(path, [yaml.safe_dump(groups, sort_keys=False).encode("utf-8")])
