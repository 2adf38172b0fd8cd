"""Systems of an experiment: decoders, each written as a string such as ``tree@tree_nodes=16``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, get_type_hints

import msgspec

from specdec_plugins.decoding.acceptance import RULE_OPTIONS, StrictRule, choose_rule
from specdec_plugins.decoding.controllers.base import CONTROLLERS, controller_of
from specdec_plugins.decoding.controllers.simple import Constant
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.options import option_fields
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.inference.settings import Settings

AR, DRAFTER, FAIRSEQ, CTRANSLATE2 = "AR", "drafter", "fairseq", "ctranslate2"
SETTINGS = (
    *("batch", "beam", "block_size", "target_prefix"),
    *("engine", "precision", "drafter_precision"),
)
"""Settings that a system may have of its own."""


@dataclass(frozen=True)
class System:
    """Stock fairseq, CTranslate2, our AR, the drafter alone, or a controller."""

    name: str
    """The string that it was made from."""
    settings: Settings
    """Settings of a run; of CTranslate2 only the limits count."""
    compute_type: str | None = None
    """CTranslate2's precision, perhaps with kernels; None for other systems."""

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
        options: values of controllers' and rules' options that all systems share.

    Raises:
        ValueError: an unknown name or key, or a value that cannot be.
    """
    name, _, rest = text.partition("@")
    pairs = [part.partition("=") for part in rest.split(",") if part]
    values = {key if equals else "precision": value if equals else key
              for key, equals, value in pairs}  # fmt: skip
    if name == CTRANSLATE2:
        limits = _taken(values, get_type_hints(GenerationLimits))
        system = System(
            text,
            _without_drafts(base, limits, strategy=AR, engine="eager", precision="float32"),
            values.pop("precision", "float32"),
        )
    elif name in CONTROLLERS or name in (AR, DRAFTER, FAIRSEQ):
        settings = _settings(name, values, base, options or {})
        system = System(text, settings)
    else:
        known = ", ".join((FAIRSEQ, CTRANSLATE2, AR, DRAFTER, *CONTROLLERS))
        raise ValueError(f"--systems {text}: must begin with one of {known}")
    if values:
        raise ValueError(f"--systems {text}: has no option {', '.join(values)}")
    return system


def _settings(
    name: str, values: dict[str, str], base: Settings, options: Mapping[str, Any]
) -> Settings:
    """Take a system's settings out of its values."""
    kinds = get_type_hints(Settings)
    own = _taken(values, {key: kinds[key] for key in SETTINGS})
    limits = _taken(values, get_type_hints(GenerationLimits))
    rule_kinds = {option.name: option.kind for option in RULE_OPTIONS.values()}
    rule = base.rule
    if taken := _taken(values, rule_kinds):
        rule = choose_rule({**base.rule.values, **taken})
    if name == FAIRSEQ:
        return _without_drafts(
            base, limits, **{"engine": "eager", "precision": "float32", **own}, strategy=FAIRSEQ
        )
    if name == AR:
        return _without_drafts(base, limits, **{"rule": rule, **own}, strategy=AR)
    if name == DRAFTER:
        plain = {"rule": StrictRule(), "controller": Constant()}
        return replace(_limited(base, limits), **{**plain, **own}, strategy=DRAFTER)
    controller = CONTROLLERS[name]
    kinds = get_type_hints(controller)
    taken = _taken(values, {key: kinds[key] for key in option_fields(controller)})
    chosen = controller_of({**options, **taken, "controller": name})
    return replace(
        _limited(base, limits), **{"rule": rule, **own}, strategy="specdec", controller=chosen
    )


def _without_drafts(base: Settings, limits: Mapping[str, Any], **changes: Any) -> Settings:
    plain = {
        "controller": Constant(),
        "rule": StrictRule(),
        "block_size": None,
        "drafter_precision": None,
    }
    return replace(_limited(base, limits), ar_backend="ours", **{**plain, **changes})


def _limited(base: Settings, limits: Mapping[str, Any]) -> Settings:
    return replace(base, limits=replace(base.limits, **limits)) if limits else base


def _taken(values: dict[str, str], kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Take the values of these names out, each as its type.

    Raises:
        ValueError: a value of another type.
    """
    found = {}
    for name in kinds.keys() & values.keys():
        text = values.pop(name)
        try:
            found[name] = msgspec.convert(text, kinds[name], strict=False)
        except msgspec.ValidationError as error:
            raise ValueError(f"--systems {name}={text}: {error}") from error
    return found


def describe_system(system: System) -> dict[str, Any]:
    """Return all that sets a system apart from others of its experiment."""
    described = system.settings.describe()
    names = {field.name for field in fields(Settings)} - {"data", "path", "ar_path", "trace"}
    return {
        **{name: described[name] for name in sorted(names)},
        "compute_type": system.compute_type,
    }


def choose_baseline(systems: Sequence[System], asked: str | None) -> str:
    """Return the name of the system that others are compared with: by default AR, or the first.

    Raises:
        InferenceError: it is not among them.
    """
    names = [system.name for system in systems]
    baseline = asked or (AR if AR in names else names[0])
    if baseline not in names:
        raise InferenceError(f"--baseline {asked}: must be one of {', '.join(names)}")
    return baseline
