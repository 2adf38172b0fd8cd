"""The options of decoding as fairseq's dataclasses, made from where each is declared."""

# No postponed annotations: fairseq reads the fields' types at run time.

from collections.abc import Iterable, Iterator
from dataclasses import field, make_dataclass
from types import NoneType
from typing import Any, Optional, get_args, get_type_hints

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from specdec_plugins.decoding.acceptance import RULE_OPTIONS
from specdec_plugins.decoding.controllers.base import CONTROLLERS
from specdec_plugins.decoding.engine_choice import ENGINE, OF_DRAFTER, OF_MODELS
from specdec_plugins.decoding.limits import REPETITION_PENALTY
from specdec_plugins.decoding.options import Option, option_fields

Declared = tuple[str, Any, Any, str]
"""Name, type, default and help."""


def _config(name: str, options: Iterable[Declared]) -> type:
    """Return a fairseq dataclass with a field for every option."""
    fields: dict[str, Any] = {}
    for option, kind, default, help in options:
        new = option, kind, field(default=default, metadata={"help": help})
        if str(fields.setdefault(option, new)) != str(new):
            raise ValueError(f"--{option.replace('_', '-')}: is declared twice")
    return make_dataclass(
        name, fields.values(), bases=(FairseqDataclass,), namespace={"__module__": __name__}
    )


def _declared(*options: Option[Any]) -> Iterator[Declared]:
    for option in options:
        kind = ChoiceEnum(option.choices) if option.choices else option.kind
        kind = Optional[kind] if option.optional else kind
        yield option.name, kind, option.default, option.help


def _of_controllers() -> Iterator[Declared]:
    names = "; ".join(f"{kind.name} ({kind.help})" for kind in CONTROLLERS.values())
    yield "controller", str, "auto", f"decides how much to draft and verify: {names}"
    for controller in CONTROLLERS.values():
        kinds = get_type_hints(controller)
        for name, option in option_fields(controller).items():
            kind = kinds[name]
            kind = Optional[get_args(kind)[0]] if NoneType in get_args(kind) else kind
            yield name, kind, option.default, option.metadata["help"]


ControllerConfig = _config("ControllerConfig", _of_controllers())
"""How much to draft and to verify."""
RuleConfig = _config("RuleConfig", _declared(*RULE_OPTIONS.values()))
"""The options of when drafted tokens are accepted."""
LimitsConfig = _config("LimitsConfig", _declared(REPETITION_PENALTY))
"""Changes of the verifier's scores that are none of fairseq's options."""
EngineConfig = _config("EngineConfig", _declared(ENGINE, OF_MODELS, OF_DRAFTER))
"""The engine of the models, and its precision."""
