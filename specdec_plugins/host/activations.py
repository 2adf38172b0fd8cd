"""The activation ``swish``, for which fairseq returns a class in place of a function."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from fairseq import utils
from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig
from torch import Tensor

SWISH = "swish"

_get_activation_fn = utils.get_activation_fn


def get_activation_fn(activation: str) -> Callable[[Tensor], Tensor]:
    """Return an activation by fairseq's name of it."""
    function: Callable[[Tensor], Tensor] = _get_activation_fn(activation)
    return F.silu if activation == SWISH else function


utils.get_activation_fn = get_activation_fn
# The choices of --activation-fn lack the name.
_choices = ChoiceEnum([*utils.get_available_activation_fns(), SWISH])
TransformerConfig.__annotations__["activation_fn"] = _choices
TransformerConfig.__dataclass_fields__["activation_fn"].type = _choices
