"""The systems of a comparison with what a user would pick otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from specdec_plugins.decoding.acceptance import AcceptanceRule, StrictRule
from specdec_plugins.decoding.controllers import POLICIES, ControllerOptions
from specdec_plugins.decoding.engine_choice import COMPILED, check_engine
from specdec_plugins.engines.openvino_core import computed_precision
from specdec_plugins.evaluation.systems import AR, CTRANSLATE2, FAIRSEQ, System
from specdec_plugins.inference.settings import Settings

EAGER = "eager"
"""The engine that is PyTorch."""
OPENVINO = "openvino"
FLOAT32 = "float32"
CONTROLLERS = tuple(name for name, policy in POLICIES.items() if policy.real and name != "none")


@dataclass(frozen=True)
class Peers:
    """Which systems are compared: all combinations of each kind."""

    threads: Sequence[int] = (1, 2)
    beams: Sequence[int] = (5, 1)
    """The beam sizes of stock fairseq."""
    ctranslate2: Sequence[str] = ()
    """Its precisions."""
    precisions: Sequence[str] = (FLOAT32, "bfloat16")
    """Our own."""
    drafter_precisions: Sequence[str] = ()
    """The precisions of drafts, where they go with the verifier's; else they are as that."""
    engines: Sequence[str] = (EAGER,)
    controllers: Sequence[ControllerOptions] = (ControllerOptions("tree"),)
    rules: Sequence[AcceptanceRule] = (StrictRule(),)


def peer_systems(base: Settings, choice: Peers) -> list[System]:
    """Each once, those of as many threads together.

    Args:
        base: what all of ours share.

    Raises:
        ValueError: none of the engines has any of the precisions, or no system drafts in one that
            drafts are to have.
    """
    if not any(_goes_together(*pair) for pair in product(choice.engines, choice.precisions)):
        raise ValueError(
            f"--precision {' '.join(choice.precisions)}: is not for --engine "
            f"{' '.join(choice.engines)}"
        )
    found = list(_systems(base, choice))
    drafting = {s.drafter_precision or s.precision for _, s, _ in found if s.strategy == "specdec"}
    for own in choice.drafter_precisions:
        if own not in drafting:
            raise ValueError(
                f"--drafter-precision {own}: needs --engine openvino, and a --precision as wide"
            )
    systems = [
        System(name, settings, threads, compute_type)
        for threads in choice.threads
        for name, settings, compute_type in found
    ]
    return list({system.label: system for system in systems}.values())


def _systems(base: Settings, choice: Peers) -> Iterator[tuple[str, Settings, str | None]]:
    """Name, settings and CTranslate2's precision of those with a number of threads."""
    plain = replace(base, block_size=None, controller=ControllerOptions(), rule=StrictRule())
    for beam in choice.beams:
        yield f"fairseq beam {beam}", replace(plain, strategy=FAIRSEQ, beam=beam), None
    for precision in choice.ctranslate2:
        yield f"{CTRANSLATE2} {precision}", replace(plain, strategy=AR), precision
    pairs = product(choice.engines, choice.precisions)
    arithmetic = [pair for pair in pairs if _goes_together(*pair)]
    for engine, precision in arithmetic:
        settings = replace(plain, strategy=AR, engine=engine, precision=precision)
        yield _own_name(AR, engine, precision), settings, None
    for rule, controller, (engine, precision) in product(
        choice.rules, choice.controllers, arithmetic
    ):
        called = f"{_rule_name(rule, choice.rules)} {controller.controller}"
        name = _own_name(called, engine, precision)
        computed = replace(base, engine=engine, precision=precision)
        for own in _of_drafts(choice.drafter_precisions, engine, precision):
            yield (
                name if own is None else f"{name}, {own} drafts",
                replace(computed, rule=rule, controller=controller, drafter_precision=own),
                None,
            )


def _goes_together(engine: str, precision: str) -> bool:
    """Return whether the engine computes in this precision, and takes no other for it."""
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
    """Return the name of a rule, with its values where another rule of the same kind is
    compared."""
    if sum(other.name == rule.name for other in beside) == 1:
        return rule.name
    return f"{rule.name} {' '.join(map(str, rule.values.values()))}"


def _own_name(what: str, engine: str, precision: str) -> str:
    return " ".join([what, *([engine] if engine != EAGER else []), precision])
