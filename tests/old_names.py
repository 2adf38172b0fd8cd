"""Weights under the names that older versions of fairseq gave them."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}

Weights = dict[str, Tensor]


def fused(weights: Weights) -> Weights:
    """One matrix of queries, keys and values in each attention: until November 2019. There was no
    ``output_projection`` yet: a table of its own was called ``embed_out``."""
    old = dict(weights)
    for name in weights:
        if match := re.fullmatch(r"(.*_attn)\.q_proj\.(weight|bias)", name):
            parts = [old.pop(f"{match[1]}.{part}_proj.{match[2]}") for part in "qkv"]
            old[f"{match[1]}.in_proj_{match[2]}"] = torch.cat(parts)
    output = old.pop("decoder.output_projection.weight")
    if not torch.equal(output, old["decoder.embed_tokens.weight"]):
        old["decoder.embed_out"] = output
    return old


def numbered_norms(weights: Weights) -> Weights:
    """Layer norms by number, as in the first Transformers."""

    def rename(name: str) -> str:
        match = re.fullmatch(r"(encoder|decoder)(\.layers\.\d+)\.(\w+layer_norm)\.(\w+)", name)
        if match is None:
            return name
        side, layer, norm, kind = match.groups()
        return f"{side}{layer}.layer_norms.{NORMS[side].index(norm)}.{kind}"

    return {rename(name): tensor for name, tensor in weights.items()}


def with_positions(weights: Weights) -> Weights:
    """The tables of sinusoidal positions, which were saved, too."""
    tables = {f"{side}.embed_positions.weights": torch.zeros(66, 16) for side in NORMS}
    return {**weights, **tables}


def without_versions(weights: Weights) -> Weights:
    """No ``version``: then there was no norm after the last layer, either."""
    kinds = ("version", "layer_norm.weight", "layer_norm.bias")
    gone = {f"{side}.{kind}" for side in NORMS for kind in kinds}
    return {name: tensor for name, tensor in weights.items() if name not in gone}


def half(weights: Weights) -> Weights:
    """Floating point numbers in float16."""
    return {n: t.half() if t.is_floating_point() else t for n, t in weights.items()}


def before_cfg(state: dict[str, Any]) -> dict[str, Any]:
    """All options of a command line in one namespace: until version 0.10.1."""
    args = state["cfg"]["model"]
    task = state["cfg"]["task"]
    for name, value in (task if isinstance(task, dict) else vars(task)).items():
        setattr(args, "task" if name == "_name" else name, value)
    del args._name
    return {**state, "args": args, "cfg": None}
