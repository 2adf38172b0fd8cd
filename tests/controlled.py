"""A tiny pair and controllers of every kind, with whatever has to be told to them beforehand."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from conftest import make_task, make_verifier
from drafters import make_block, make_causal
from scripted import DICTIONARY, ScriptedHead, traced

from specdec_plugins.decoding.acceptance import AcceptanceRule
from specdec_plugins.decoding.controllers import POLICIES, Controller, ControllerOptions
from specdec_plugins.decoding.controllers.base import Decoder
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.steps.drafter import CachedDrafter
from specdec_plugins.engines.eager import EagerEngine

K = 4
DRAFTERS: dict[str, dict[str, Any]] = {
    "block": {"src_embedding_copy": True},
    "causal": {},
    "causal, features": {"verifier_features": True},
    "causal, all shared": {
        "share_verifier_encoder": True,
        "verifier_features": True,
        "verifier_feature_layers": "1",
        "previous_token_head": True,
    },
}
# Neither constant nor the drafter's own view.
HEAD = ScriptedHead(lambda states, known: (states.double().mean(-1).sigmoid() + known) / 2)


@cache
def verifier() -> Any:
    """Its targets end at many lengths."""
    model = make_verifier(seed=1).requires_grad_(False)
    model.decoder.output_projection.weight[2] *= 4
    return model


@cache
def drafter(name: str) -> Any:
    """One of ``DRAFTERS``."""
    task = make_task(block_size=K)
    task.verifier = verifier()
    return (make_block if name == "block" else make_causal)(task, **DRAFTERS[name])


def make_generator(
    kind: str,
    controller: Controller,
    max_len_b: int,
    rule: AcceptanceRule | None = None,
) -> SpeculativeGenerator:
    """Of the pair, traced."""
    model = drafter(kind)
    model.attach_verifier(verifier())
    cached = CachedDrafter(model, EagerEngine())
    limits = GenerationLimits(max_len_b=max_len_b)
    return traced(SpeculativeGenerator(verifier(), cached, DICTIONARY, controller, rule, limits))


def priced(controller: Any, slope: float) -> Any:
    """Let it learn costs without a clock: 1 for a step, and for every slot and row ``slope`` as
    much."""

    def prepare(decoder: Decoder, sample: Any) -> None:
        rows, most = len(sample["net_input"]["src_tokens"]), controller.needs.most
        slots = slope * most * np.arange(rows + 1.0).clip(1)
        controller.learn_costs(1 + slots / 2, 1 + 1.5 * slots)

    controller.prepare = prepare
    return controller


def make_policy(name: str, k: int, seed: int = 0, least: int = 0, **given: Any) -> Controller:
    """One of ``VARIANTS``."""
    slope = (0.0, 0.05, 0.4)[seed % 3]
    plain, _, switch = name.partition(", ")
    given |= SWITCHES[switch] if switch else {}
    options = ControllerOptions(plain, min_draft=least, **given)
    controller = options.build(k, HEAD)
    if switch:
        controller.PERIOD = 2  # type: ignore[attr-defined]
    return priced(controller, slope) if options.policy.measures else controller


SWITCHES: dict[str, dict[str, Any]] = {
    "refit": {"refit_threshold": True},
    "remember": {"remember_draft": True},
    "auto": {"auto_stop_threshold": True},
}
VARIANTS = sorted(
    {
        *POLICIES,
        "confidence, refit",
        "heuristic, remember",
        "acceptance-head, auto",
    }
    - {"none"}
)
