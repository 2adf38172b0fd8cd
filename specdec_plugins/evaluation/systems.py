"""Systems of an experiment: decoders, each written as a string such as ``tree@tree_nodes=16``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_type_hints

import msgspec
import torch

from specdec_plugins.decoding.acceptance import RULES, StrictRule, choose_rule
from specdec_plugins.decoding.controllers.base import CONTROLLERS, controller_of
from specdec_plugins.decoding.controllers.simple import Constant
from specdec_plugins.decoding.drafter_alone import DrafterAlone
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.options import option_types
from specdec_plugins.decoding.statistics import COUNTS, DecodingStatistics
from specdec_plugins.decoding.step_result import Judgement, Observer, StepResult
from specdec_plugins.evaluation.worker import Decoded
from specdec_plugins.files.lines import Line
from specdec_plugins.files.output import JsonObject
from specdec_plugins.inference import Translator, load_translator
from specdec_plugins.inference.settings import Settings
from specdec_plugins.inference.translator import Translation

AR, DRAFTER, FAIRSEQ, CTRANSLATE2 = "AR", "drafter", "fairseq", "ctranslate2"
SETTINGS = (
    *("beam", "block_size", "drafter_precision", "drafts", "engine", "precision"),
    "target_prefix",
)
"""Settings that a system may have of its own."""
PLAIN: dict[str, Any] = {
    "controller": Constant(),
    "rule": StrictRule(),
    **dict.fromkeys(("block_size", "drafter_precision", "drafts")),
    "ar_backend": "ours",
}
"""Settings of systems without drafts."""


@dataclass(frozen=True)
class System:
    """Stock fairseq, CTranslate2, our AR, the drafter alone, or a controller."""

    name: str
    """The string that it was made from."""
    settings: Settings
    """Settings of a run; of CTranslate2 only the limits count."""
    compute_type: str | None = None
    """CTranslate2's precision; None for other systems."""

    @property
    def policy(self) -> str:
        """The controller's name, or the strategy where nothing is controlled."""
        if self.compute_type is not None:
            return CTRANSLATE2
        speculates = self.settings.strategy == "specdec"
        return self.settings.controller.name if speculates else self.settings.strategy

    @property
    def real(self) -> bool:
        """False if it knows more than a decoder can."""
        return self.policy not in CONTROLLERS or CONTROLLERS[self.policy].real


def parse_system(text: str, base: Settings, options: Mapping[str, Any] | None = None) -> System:
    """Return the system of ``NAME[@KEY=VALUE,...]``.

    NAME is ``fairseq``, ``ctranslate2``, ``AR``, ``drafter`` or a controller. Keys are those of
    ``SETTINGS``, of limits, and options of the controller and of acceptance rules. A value without
    a key is the precision.

    Args:
        base: settings that all systems share, such as models and limits.
        options: values of controllers' options that all systems share.
    """
    name, _, rest = text.partition("@")
    values = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        values[key if equals else "precision"] = value if equals else key
    kinds = get_type_hints(Settings)
    asked = _taken(values, {key: kinds[key] for key in SETTINGS})
    limits = replace(base.limits, **_taken(values, get_type_hints(GenerationLimits)))
    of_rule = _taken(values, option_types(*RULES))
    rule = choose_rule({**base.rule.values, **of_rule}) if of_rule else base.rule
    compute_type = None
    if name == FAIRSEQ:
        changes = {**PLAIN, "engine": "eager", "precision": "float32", **asked}
    elif name == CTRANSLATE2:
        compute_type = str(asked.pop("precision", "float32"))
        values |= asked
        changes = {**PLAIN, "engine": "eager", "precision": "float32", "strategy": AR}
    elif name == AR:
        changes = {**PLAIN, "rule": rule, **asked}
    elif name == DRAFTER:
        changes = {"controller": Constant(), "rule": StrictRule(), "drafts": None, **asked}
    elif name in CONTROLLERS:
        of_controller = _taken(values, option_types(CONTROLLERS[name]))
        controller = controller_of({**(options or {}), **of_controller, "controller": name})
        changes = {"rule": rule, **asked, "strategy": "specdec", "controller": controller}
    else:
        known = ", ".join((FAIRSEQ, CTRANSLATE2, AR, DRAFTER, *CONTROLLERS))
        raise ValueError(f"--systems {text}: must begin with one of {known}")
    if values:
        raise ValueError(f"--systems {text}: has no option {', '.join(values)}")
    settings = replace(base, limits=limits, **{"strategy": name, **changes})
    if settings.drafts_path is not None:
        raise ValueError(f"--drafts {settings.drafts_path}: is copy or source here")
    return System(text, settings, compute_type)


def _taken(values: dict[str, Any], kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Take the values of these names out, each as its type."""
    taken = {}
    for name in kinds.keys() & values.keys():
        text = values.pop(name)
        try:
            taken[name] = msgspec.convert(text, kinds[name], strict=False)
        except msgspec.ValidationError as error:
            raise ValueError(f"--systems {name}={text}: {error}") from error
    return taken


class RowCounts(Observer):
    """Drafted and verified tokens of each row of the last batch."""

    def begin(self, forced: list[int]) -> None:
        self.drafted, self.verified = [0] * len(forced), [0] * len(forced)

    def step(self, result: StepResult, judgement: Judgement | None = None) -> None:
        for row, drafted, verified in zip(result.rows, result.drafted, result.verified):
            self.drafted[row] += drafted
            self.verified[row] += verified


@dataclass
class TranslatorJob:
    """A translator's settings, and the batches to decode."""

    settings: Settings
    batches: Sequence[Sequence[Line]]
    translator: Translator = field(init=False)

    def load(self) -> None:
        """Load the models."""
        self.translator = load_translator(self.settings)

    def decode(self, batches: int, seed: int) -> Decoded:
        """Decode the first ``batches``; a controller keeps what it learns for the next call."""
        generator, counts = self.translator.generator, RowCounts()
        log = generator.statistics = DecodingStatistics()
        ours = False
        if isinstance(generator, SpeculativeGenerator | DrafterAlone):
            generator.observers, ours = [counts], True
        seconds: list[float] = []
        results: list[Translation] = []
        columns: dict[str, list[object]] = {"drafted_tokens": [], "verified_tokens": []}
        for batch in self.batches[:batches]:
            before = log.total_seconds
            results += self.translator.translate(batch, seed=seed)
            seconds.append(log.total_seconds - before)
            if ours:
                columns["drafted_tokens"] += counts.drafted
                columns["verified_tokens"] += counts.verified
        figures: JsonObject = {
            "engine": self.translator.engine,
            "precision": self.translator.precision,
            "block_size": self.translator.block_size,
        }
        if torch.device(self.settings.device).type == "cuda":
            figures["memory"] = torch.cuda.max_memory_allocated()
        if ours:
            figures |= {name: getattr(log, name) for name in COUNTS}
            figures["control_seconds"] = log.stopwatch.seconds["control"]
            columns |= {
                "steps": [len(result.accepted) for result in results],
                "accepted_tokens": [sum(result.accepted) for result in results],
                "committed_tokens": [len(result.tokens) - result.forced for result in results],
            }
        if self.settings.strategy == "drafter":
            # It accepts without verifying.
            figures |= {"verified_tokens": None, "accepted_tokens": None}
        return Decoded(seconds, [r.text for r in results], columns if ours else {}, figures)
