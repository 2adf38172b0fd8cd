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
    SURVIVAL,
    ControllerOptions,
    build_controller,
)

__all__ = [
    "NAMES",
    "SURVIVAL",
    "Bounds",
    "Constant",
    "Controller",
    "ControllerOptions",
    "Draft",
    "Head",
    "Outcome",
    "build_controller",
]
