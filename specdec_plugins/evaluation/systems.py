"""Systems of an experiment: decoders, each written as a string such as ``tree@tree_nodes=16``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, get_type_hints

import msgspec

from specdec_plugins.decoding.acceptance import RULE_OPTIONS, StrictRule, choose_rule
from specdec_plugins.decoding.controllers.base import CONTROLLERS, controller_of
from specdec_plugins.decoding.controllers.simple import Constant
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.options import option_types
from specdec_plugins.inference.settings import Settings

AR, DRAFTER, FAIRSEQ, CTRANSLATE2 = "AR", "drafter", "fairseq", "ctranslate2"
SETTINGS = ("beam", "block_size", "drafter_precision", "engine", "precision", "target_prefix")
"""Settings that a system may have of its own."""
PLAIN: dict[str, Any] = {
    "controller": Constant(),
    "rule": StrictRule(),
    "block_size": None,
    "drafter_precision": None,
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
    of_rule = _taken(values, option_types(*RULE_OPTIONS))
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
        changes = {"controller": Constant(), "rule": StrictRule(), **asked}
    elif name in CONTROLLERS:
        of_controller = _taken(values, option_types(CONTROLLERS[name]))
        controller = controller_of({**(options or {}), **of_controller, "controller": name})
        changes = {"rule": rule, **asked, "strategy": "specdec", "controller": controller}
    else:
        known = ", ".join((FAIRSEQ, CTRANSLATE2, AR, DRAFTER, *CONTROLLERS))
        raise ValueError(f"--systems {text}: must begin with one of {known}")
    if values:
        raise ValueError(f"--systems {text}: has no option {', '.join(values)}")
    changes = {"strategy": name, **changes}
    return System(text, replace(base, limits=limits, **changes), compute_type)


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
