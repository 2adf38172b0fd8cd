"""Systems: what decodes, and how, each written as a string such as ``tree@tree_nodes=16``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_type_hints

import msgspec

from specdec_plugins.decoding.acceptance import RULES, StrictRule, choose_rule
from specdec_plugins.decoding.controllers.base import CONTROLLERS, controller_of
from specdec_plugins.decoding.controllers.simple import Constant
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.options import option_types
from specdec_plugins.files.output import JsonObject
from specdec_plugins.inference.settings import CTRANSLATE2, Settings

AR = "AR"
BEAM = "beam"
DRAFTER = "drafter"
FAIRSEQ = "fairseq"
#: Settings that a system may have of its own.
SETTINGS = (
    *("beam", "block_size", "drafter_precision", "drafts", "engine", "precision"),
    "target_prefix",
)
#: Settings of systems without drafts.
GREEDY: JsonObject = {
    "controller": Constant(),
    "drafts": None,
    "block_size": None,
    "drafter_precision": None,
    "ar_backend": "ours",
}
PEER: JsonObject = {**GREEDY, "rule": StrictRule(), "engine": "auto", "precision": "float32"}
#: Settings of systems that are no controllers; those without a rule take any.
OTHERS: dict[str, JsonObject] = {
    FAIRSEQ: {**PEER, "strategy": FAIRSEQ},
    CTRANSLATE2: {**PEER, "strategy": AR, "ar_backend": CTRANSLATE2, "device": "cpu"},
    AR: {**GREEDY, "strategy": AR},
    BEAM: {**GREEDY, "strategy": AR},
    DRAFTER: {
        "controller": Constant(),
        "drafts": None,
        "rule": StrictRule(),
        "strategy": DRAFTER,
    },
}


def parse_system(text: str, base: Settings, options: Mapping[str, Any] | None = None) -> Settings:
    """Return the settings of the system ``NAME[@KEY=VALUE,...]``; of CTranslate2 only precision,
    beam and limits count.

    NAME is ``fairseq``, ``ctranslate2``, ``AR``, ``beam``, ``drafter`` or a controller. Keys are
    those of ``SETTINGS``, of limits, and options of the controller and of acceptance rules. A value
    without a key is the precision.

    Args:
        base: settings that all systems share, such as models and limits.
        options: values of controllers' options that all systems share.
    """
    name, _, rest = text.partition("@")
    values = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            key, value = "precision", part
        if key in values:
            raise ValueError(f"--systems {text}: has two values of {key}")
        values[key] = value
    kinds = get_type_hints(Settings)
    keys = ("precision", "beam") if name == CTRANSLATE2 else SETTINGS
    asked = _taken(values, {key: kinds[key] for key in keys})
    limits = replace(base.limits, **_taken(values, get_type_hints(GenerationLimits)))
    of_rule = _taken(values, option_types(*RULES))
    rule = choose_rule({**base.rule.values, **of_rule}) if of_rule else base.rule
    if name in CONTROLLERS:
        controller = controller_of(
            {
                **(options or {}),
                **_taken(values, option_types(CONTROLLERS[name])),
                "controller": name,
            }
        )
        changes = {"strategy": "specdec", "controller": controller, "rule": rule}
    elif name in OTHERS:
        changes = {"rule": rule, **OTHERS[name]}
        if "rule" in OTHERS[name]:  # of its own
            values |= of_rule
    else:
        raise ValueError(
            f"--systems {text}: must begin with one of {', '.join((*OTHERS, *CONTROLLERS))}"
        )
    if values:
        raise ValueError(f"--systems {text}: has no option {', '.join(values)}")
    changes["beam"] = (base.beam or 5) if name in (BEAM, FAIRSEQ) else 1
    settings = replace(base, limits=limits, **{**changes, **asked})
    if name == AR and settings.beams > 1:
        raise ValueError(f"--systems {text}: is greedy; {BEAM} searches")
    if settings.drafts_path is not None:
        raise ValueError(f"--drafts {settings.drafts_path}: is copy or source here")
    return settings


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
