"""The options that say how to decode."""

from __future__ import annotations

from dataclasses import dataclass, field

from specdec_plugins.decoding.acceptance import AcceptanceRule, StrictRule
from specdec_plugins.decoding.controllers.base import Controller
from specdec_plugins.decoding.controllers.simple import Auto
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.options import PRECISION, EngineOptions, option
from specdec_plugins.engines.choice import PRECISIONS


@dataclass(frozen=True, kw_only=True)
class RunOptions(EngineOptions):
    """Options of any run: kinds of draft see no others. Those with help are flags."""

    batch: int = option(1, "sentences decoded together (1)", 1)
    block_size: int | None = option(
        None, "slots drafted in a pass (as in training; of texts and copies 64)", 1
    )
    rule: AcceptanceRule = field(default_factory=StrictRule)
    controller: Controller = field(default_factory=Auto)
    limits: GenerationLimits = field(default_factory=GenerationLimits)
    device: str = "cpu"
    precision: str = option("float32", f"{PRECISION} (float32)", choices=PRECISIONS)
