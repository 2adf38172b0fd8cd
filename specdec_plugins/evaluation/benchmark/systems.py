"""The systems that a benchmark compares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from specdec_plugins.decoding.acceptance import AcceptanceRule, StrictRule
from specdec_plugins.decoding.controllers import POLICIES, ControllerOptions
from specdec_plugins.decoding.engine_choice import COMPILED, check_engine
from specdec_plugins.engines.openvino_core import computed_precision
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.json_object import JsonObject
from specdec_plugins.inference.report import counted
from specdec_plugins.inference.settings import Settings

CTRANSLATE2 = "CTranslate2"
FAIRSEQ = "fairseq"
AR = "AR"
EAGER = "eager"
"""The engine that is PyTorch."""
OPENVINO = "openvino"
FLOAT32 = "float32"
CONTROLLERS = tuple(name for name, policy in POLICIES.items() if policy.real and name != "none")


@dataclass(frozen=True)
class BenchmarkSystem:
    """A decoder, and how it computes."""

    name: str
    """Unique among systems of as many threads."""
    family: str
    """``CTranslate2``, ``fairseq``, ``AR``, or the acceptance rule's name."""
    strategy: str
    """That of the settings, or ``CTranslate2``."""
    engine: str
    precision: str
    threads: int
    rule: AcceptanceRule = field(default_factory=StrictRule)
    controller: ControllerOptions = field(default_factory=ControllerOptions)
    beam: int = 1
    drafter_precision: str | None = None
    """As of the settings."""

    @property
    def label(self) -> str:
        """Its name, with the threads."""
        return f"{self.name}, {counted(self.threads, 'thread')}"

    @property
    def drafts(self) -> bool:
        return self.strategy == "specdec"

    def settings(self, base: Settings, batch: int) -> Settings:
        """Of all but CTranslate2, for text that is segmented already.

        Raises:
            ValueError: a setting that cannot be.
        """
        arithmetic: JsonObject = {"engine": self.engine, "precision": self.precision}
        arithmetic["drafter_precision"] = self.drafter_precision
        segmented: JsonObject = {"tokenizer": None, "bpe": None, "encoder_options": {}}
        return replace(
            base,
            strategy=self.strategy,
            rule=self.rule,
            controller=self.controller,
            beam=self.beam,
            batch=batch,
            block_size=base.block_size if self.drafts else None,
            post_process=None,
            keep_bpe=True,
            **segmented,
            **arithmetic,
        )

    def describe(self) -> JsonObject:
        """What sets it apart from the others."""
        return {
            "name": self.name,
            "strategy": self.strategy,
            "rule": self.rule.values if self.drafts else None,
            "controller": self.controller.describe() if self.drafts else None,
            "engine": self.engine,
            "precision": self.precision,
            "drafter_precision": self.drafter_precision,
            "threads": self.threads,
            "beam": self.beam,
        }


@dataclass(frozen=True)
class Choice:
    """Which systems a benchmark is to have: of each kind all combinations."""

    threads: Sequence[int] = (1, 2)
    beams: Sequence[int] = (5, 1)
    """Of stock fairseq."""
    ctranslate2: Sequence[str] = ()
    """Its precisions."""
    precisions: Sequence[str] = (FLOAT32, "bfloat16")
    """Our own."""
    drafter_precisions: Sequence[str] = ()
    """Of drafts, where they go with the verifier's; else they are as that."""
    engines: Sequence[str] = (EAGER,)
    controllers: Sequence[ControllerOptions] = (ControllerOptions("tree"),)
    rules: Sequence[AcceptanceRule] = (StrictRule(),)


def list_systems(choice: Choice) -> list[BenchmarkSystem]:
    """Each once, those of as many threads together.

    Raises:
        ValueError: none of the engines has any of the precisions, or no system drafts in one that
            drafts are to have.
    """
    if not any(_goes_together(*pair) for pair in product(choice.engines, choice.precisions)):
        raise ValueError(
            f"--precision {' '.join(choice.precisions)}: is not for --engine "
            f"{' '.join(choice.engines)}"
        )
    found = [system for threads in choice.threads for system in _systems(choice, threads)]
    drafting = {system.drafter_precision or system.precision for system in found if system.drafts}
    for own in choice.drafter_precisions:
        if own not in drafting:
            raise ValueError(
                f"--drafter-precision {own}: needs --engine openvino, and a --precision as wide"
            )
    return list({system.label: system for system in found}.values())


def _systems(choice: Choice, threads: int) -> Iterator[BenchmarkSystem]:
    for beam in choice.beams:
        name = f"fairseq beam {beam}"
        yield BenchmarkSystem(name, FAIRSEQ, FAIRSEQ, EAGER, FLOAT32, threads, beam=beam)
    for precision in choice.ctranslate2:
        name = f"{CTRANSLATE2} {precision}"
        yield BenchmarkSystem(name, CTRANSLATE2, CTRANSLATE2, CTRANSLATE2, precision, threads)
    pairs = product(choice.engines, choice.precisions)
    arithmetic = [pair for pair in pairs if _goes_together(*pair)]
    for engine, precision in arithmetic:
        name = _own_name(AR, engine, precision)
        yield BenchmarkSystem(name, AR, AR, engine, precision, threads)
    for rule, controller in product(choice.rules, choice.controllers):
        for engine, precision in arithmetic:
            called = _rule_name(rule, choice.rules)
            name = _own_name(f"{called} {controller.controller}", engine, precision)
            for own in _of_drafts(choice.drafter_precisions, engine, precision):
                yield BenchmarkSystem(
                    name if own is None else f"{name}, {own} drafts",
                    rule.name,
                    "specdec",
                    engine,
                    precision,
                    threads,
                    rule,
                    controller,
                    drafter_precision=own,
                )


def _goes_together(engine: str, precision: str) -> bool:
    """Whether the engine computes in this precision, and takes no other for it."""
    try:
        check_engine(engine, precision, "cpu")
    except ValueError:
        return False
    return engine != OPENVINO or computed_precision(precision) == precision


def _of_drafts(asked: Sequence[str], engine: str, precision: str) -> list[str | None]:
    """Precisions of drafts for a verifier, None for its own: none that is wider, which nobody
    wants; its own, if there is no other."""
    narrower: Sequence[str] = ()
    if engine == OPENVINO and precision in COMPILED:
        narrower = COMPILED[COMPILED.index(precision) + 1 :]
    found = [own for own in asked if own in narrower and _goes_together(engine, own)]
    return [None, *found] if precision in asked or not found else list(found)


def _rule_name(rule: AcceptanceRule, beside: Sequence[AcceptanceRule]) -> str:
    """With its values where another rule of the same kind is compared."""
    if sum(other.name == rule.name for other in beside) == 1:
        return rule.name
    return f"{rule.name} {' '.join(map(str, rule.values.values()))}"


def _own_name(what: str, engine: str, precision: str) -> str:
    return " ".join([what, *([engine] if engine != EAGER else []), precision])


def choose_baseline(systems: Sequence[BenchmarkSystem], asked: str | None) -> str:
    """The name of the system with which others are compared: what was asked for, CTranslate2 in
    float32, or the first.

    Raises:
        InferenceError: it is not among them.
    """
    names = list(dict.fromkeys(system.name for system in systems))
    if asked is None:
        usual = f"{CTRANSLATE2} {FLOAT32}"
        return usual if usual in names else names[0]
    if asked not in names:
        raise InferenceError(f"--baseline '{asked}': is not one of the systems: {', '.join(names)}")
    return asked
