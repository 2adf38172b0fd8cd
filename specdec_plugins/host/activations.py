"""The activation ``swish``, for which fairseq returns a class in place of a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch.nn.functional as F
from fairseq import utils
from fairseq.models.transformer import TransformerConfig
from torch import Tensor

SWISH = "swish"

_get_activation_fn = utils.get_activation_fn


def get_activation_fn(activation: str) -> Callable[[Tensor], Tensor]:
    """Return an activation by fairseq's name of it."""
    function: Callable[[Tensor], Tensor] = _get_activation_fn(activation)
    return F.silu if activation == SWISH else function


utils.get_activation_fn = get_activation_fn
# Choices of --activation-fn, which is an Enum, lack the name.
_types: dict[str, Any] = {field.name: field.type for field in fields(TransformerConfig)}
_choices = _types["activation_fn"]
_member = object.__new__(_choices)
_member._name_ = SWISH
_member._value_ = SWISH
_choices._member_map_[SWISH] = _member
_choices._value2member_map_[SWISH] = _member
_choices._member_names_ = [*_choices._member_map_]
