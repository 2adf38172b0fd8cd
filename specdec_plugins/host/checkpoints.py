"""Models built without memory, checkpoints written whole, and the packed encoder of 0.12.2."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import RLock
from unittest.mock import patch

import torch
from fairseq.file_io import PathManager
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor, nn

from specdec_plugins.files.output import whole_file

#: Held while a model is built: :func:`without_memory` changes what other threads would build.
BUILDING = RLock()

_copy = PathManager.copy
# fairseq 0.12.2, and it alone, also stores the weights of an encoder's layers in a second, packed
# form, directly under the layer: what ends alike under its attention is the attention's own (fused,
# before November 2019). Of sinusoidal positions others saved the table, or a placeholder of it.
REDUNDANT = re.compile(
    r"(^|\.)(layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)"
    r"|embed_positions\.(_float_tensor|weights))$"
)


def copy_whole(src_path: str, dst_path: str, overwrite: bool = False) -> bool:
    """Copy a file as fairseq does, and whole or not at all if both are ordinary files.

    fairseq writes one checkpoint whole, and copies it over ``checkpoint_best.pt`` and
    ``checkpoint_last.pt``: a training that is killed meanwhile could not be resumed.
    """
    if not os.path.isfile(src_path) or not os.path.isdir(os.path.dirname(dst_path) or "."):
        return bool(_copy(src_path, dst_path, overwrite))
    with open(src_path, "rb") as source, whole_file(dst_path) as target:
        shutil.copyfileobj(source, target)
    return True


PathManager.copy = staticmethod(copy_whole)


@contextmanager
def without_memory() -> Iterator[None]:
    """Build models within the block without memory, to learn the shapes of their weights.

    Values are not worked out either: for some of them torch would import its compiler, which takes
    seconds and 60 MiB.
    """

    def undrawn(tensor: Tensor, *_: object, **__: object) -> Tensor:
        return tensor

    empty = staticmethod(lambda entries, channels, *_: torch.empty(entries, channels))
    with (
        BUILDING,
        patch.object(SinusoidalPositionalEmbedding, "get_embedding", empty),
        patch.object(Tensor, "normal_", undrawn),
        torch.device("meta"),
    ):
        yield


def without_copies(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights that hold something of their own."""
    return {name: weight for name, weight in weights.items() if not REDUNDANT.search(name)}


def use_plain_encoder(model: nn.Module) -> None:
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
