"""How much to draft and how much of it to verify: one protocol, one class a policy. No fairseq."""

from specdec_plugins.decoding.controllers.base import (
    Bounds,
    Constant,
    Controller,
    Draft,
    Head,
    Outcome,
)
from specdec_plugins.decoding.controllers.options import (
    NAMES,
    ControllerOptions,
    build_controller,
)

__all__ = [
    "NAMES",
    "Bounds",
    "Constant",
    "Controller",
    "ControllerOptions",
    "Draft",
    "Head",
    "Outcome",
    "build_controller",
]
