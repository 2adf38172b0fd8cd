"""How much to draft and how much of it to verify: one file a policy. No fairseq.

A module of this folder that registers a :class:`Policy` is found by itself: its options are flags
of every door, and it appears in sweeps, tables and plots.
"""

from specdec_plugins.decoding.controllers.base import Bounds, Controller, Needs, NoDrafts
from specdec_plugins.decoding.controllers.policy import (
    POLICIES,
    Head,
    Parts,
    Policy,
    register_policy,
)
from specdec_plugins.decoding.controllers.registry import (
    ControllerOptions,
    controller_options,
    load_policies,
)

load_policies()

__all__ = [
    "POLICIES",
    "Bounds",
    "Controller",
    "ControllerOptions",
    "Head",
    "Needs",
    "NoDrafts",
    "Parts",
    "Policy",
    "controller_options",
    "register_policy",
]
