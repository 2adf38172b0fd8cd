"""The packed encoder of fairseq 0.12.2, and other copies that it saves beside weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

import torch

T = TypeVar("T")

# fairseq 0.12.2, and it alone, also stores the weights of an encoder's layers in a second, packed
# form, directly under the layer: what ends alike under its attention is the attention's own (fused,
# before November 2019). Of sinusoidal positions others saved the table, or a placeholder of it.
REDUNDANT = re.compile(
    r"(^|\.)(layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)"
    r"|embed_positions\.(_float_tensor|weights))$"
)


def without_copies(weights: Mapping[str, T]) -> dict[str, T]:
    """Return the weights that hold something of their own."""
    return {name: weight for name, weight in weights.items() if not REDUNDANT.search(name)}


def use_plain_encoder(model: torch.nn.Module) -> None:
    """Keep fairseq 0.12.2 from its packed encoder, which fails on padding since torch 2.

    The packed weights are frozen, too: they would never get a gradient, and data-parallel training
    fails where a parameter that is not frozen gets none. Other versions of fairseq have nothing to
    keep from.
    """
    for module in model.modules():
        if "can_use_fastpath" in vars(module):
            vars(module)["can_use_fastpath"] = False
    for name, parameter in model.named_parameters():
        if REDUNDANT.search(name):
            parameter.requires_grad_(False)
