"""A tiny pair and controllers of every kind, with whatever has to be told to them beforehand."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from typing import Any

from conftest import make_task, make_verifier
from fairseq.models.transformer import TransformerModelBase

from helpers.decoding.scripted import DICTIONARY, ScriptedHead, traced
from helpers.decoding.shared_sessions import engine_of
from helpers.models.drafters import make_block, make_causal
from specdec_plugins.decoding.acceptance import AcceptanceRule, StrictRule
from specdec_plugins.decoding.build import build_generator
from specdec_plugins.decoding.controllers.base import CONTROLLERS, Controller, controller_of
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.steps.drafter import CachedDrafter
from specdec_plugins.engines.engine import Engine, Engines
from specdec_plugins.models.drafter import Drafter

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
def verifier() -> TransformerModelBase:
    """Its targets end at many lengths."""
    model = make_verifier(seed=1).requires_grad_(False)
    model.decoder.output_projection.weight[2] *= 4
    return model


@cache
def drafter(name: str) -> Drafter:
    """One of ``DRAFTERS``."""
    task = make_task(block_size=K)
    task.verifier = verifier()
    return (make_block if name == "block" else make_causal)(task, **DRAFTERS[name])


@cache
def verifier_for(engine: str) -> TransformerModelBase:
    """The same verifier in the precision of one of ``shared_sessions.NAMES``."""
    return verifier() if engine == "eager" else deepcopy(verifier()).float()


@cache
def drafter_for(engine: str, name: str) -> Drafter:
    """The same drafter in the precision of an engine."""
    if engine == "eager":
        return drafter(name)
    return deepcopy(drafter(name), {id(verifier()): verifier_for(engine)}).float()


def make_generator(
    kind: str,
    controller: Controller,
    max_len_b: int,
    rule: AcceptanceRule = StrictRule(),
    by: str = "eager",
) -> SpeculativeGenerator:
    """The pair's output, traced; ``by``: one of ``shared_sessions.NAMES``."""
    model, stock, engine = drafter_for(by, kind), verifier_for(by), engine_of(by)
    model.attach_verifier(stock)
    drafts = CachedDrafter(model, engine), controller
    limits = GenerationLimits(max_len_b=max_len_b)
    made = SpeculativeGenerator(stock, drafts, DICTIONARY, rule=rule, limits=limits, engine=engine)
    return traced(made)


def build(
    engine: Engine,
    name: str,
    controller: Controller,
    rule: AcceptanceRule = StrictRule(),
    k: int = K,
    **limits: Any,
) -> SpeculativeGenerator:
    """The pair's generator, with steps by an engine."""
    return build_generator(
        verifier(),
        drafter(name),
        DICTIONARY,
        block_size=k,
        rule=rule,
        limits=GenerationLimits(**limits),
        controller=controller,
        head=HEAD,
        engines=Engines.both(engine),
    )


def make_policy(name: str, k: int, **given: object) -> Controller:
    """One of ``VARIANTS``."""
    plain, _, switch = name.partition(", ")
    switches = {f"{switch}_{'threshold' if switch == 'refit' else 'draft'}": True}
    options = {"controller": plain, **given, **(switches if switch else {})}
    controller = controller_of(options).ready(k, HEAD)
    controller.PERIOD = 2  # type: ignore[attr-defined]
    return controller


VARIANTS = sorted({*CONTROLLERS, "confidence, refit", "heuristic, remember"} - {"auto", "none"})
