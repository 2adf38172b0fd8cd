"""Tiny random drafters for the tests, and checkpoints as fairseq saves them."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from conftest import make_task

from specdec_plugins.models.block_causal import BlockCausalConfig, BlockCausalDrafter
from specdec_plugins.models.block_nat import BlockDrafter
from specdec_plugins.models.drafter import Drafter

SIZES = {
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_embed_dim": 16,
    "decoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 32,
    "decoder_ffn_embed_dim": 32,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "max_source_positions": 64,
    "max_target_positions": 64,
    "dropout": 0.0,
}


def _sharpen(model: Drafter, seed: int) -> Any:
    torch.manual_seed(seed)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model.double().eval()


def make_causal(task: Any = None, block_size: int = 4, seed: int = 0, **settings: Any) -> Any:
    """A random ``block_causal`` drafter in float64."""
    cfg = BlockCausalConfig(block_size=block_size, verifier_embed_dim=16, **SIZES, **settings)
    return _sharpen(BlockCausalDrafter.build_model(cfg, task or make_task()), seed)


def make_block(task: Any = None, block_size: int = 4, seed: int = 0, **settings: Any) -> Any:
    """A random ``block`` drafter in float64."""
    task = task or make_task()
    task.cfg.block_size = block_size
    args = Namespace(
        **SIZES, block_size=block_size, decoder_learned_pos=True, encoder_learned_pos=True
    )
    vars(args).update(settings)
    return _sharpen(BlockDrafter.build_model(args, task), seed)


def save_checkpoint(path: Path, model: Any, **task: Any) -> Path:
    """Write a model as fairseq's trainer does; ``task`` are settings of the saved task."""
    if isinstance(model, BlockCausalDrafter):
        cfg: Any = {**asdict(model.cfg), "_name": "block_causal"}
    else:
        name = "block" if isinstance(model, BlockDrafter) else "transformer"
        cfg = Namespace(**{**_flatten(model.args), "_name": name, "arch": name})
    state = {
        "args": None,
        "cfg": {"model": cfg, "task": {"_name": "translation_specdec", **task}},
        "model": model.float().state_dict(),
        "optimizer_history": [{"lr_scheduler_state": {"best": 1.0}, "num_updates": 1}],
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 1}},
        "task_state": {},
    }
    torch.save(state, path)
    return path


def _flatten(args: Any) -> dict[str, Any]:
    """fairseq's Transformer settings under the names of its flags."""
    plain = (str, int, float, bool, type(None))
    flat = {key: value for key, value in vars(args).items() if isinstance(value, plain)}
    for side in ("encoder", "decoder"):
        for key, value in vars(getattr(args, side, Namespace())).items():
            flat[f"{side}_{key}"] = value
    return flat
