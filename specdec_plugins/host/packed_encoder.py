"""The packed copies of an encoder's weights that fairseq 0.12.2, and it alone, makes."""

from __future__ import annotations

import re

import torch

# fairseq 0.12.2, and it alone, also stores the encoder's weights in a second, packed form, and
# older ones a placeholder of the table of sinusoidal positions.
REDUNDANT = re.compile(r"\.((in_proj|out_proj|fc1|fc2)_(weight|bias)|_float_tensor)$")


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
