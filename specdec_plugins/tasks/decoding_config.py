"""The options of decoding as fairseq's dataclasses, made from where each is declared."""

# No postponed annotations: fairseq reads the fields' types at run time.

from dataclasses import field, make_dataclass
from types import NoneType
from typing import Any, Optional, get_args

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from specdec_plugins.decoding.acceptance import RULES
from specdec_plugins.decoding.controllers.base import CONTROLLERS
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.options import LoadedModels, option_fields, option_types


def _config(name: str, *owners: type, **more: tuple[str, Any]) -> type:
    """Return a fairseq dataclass with a field for every option of ``owners`` that has a help.

    Args:
        more: helps and defaults of further options, which are text.
    """
    options: dict[str, tuple[Any, Any, str]] = {
        option: (str, default, help) for option, (help, default) in more.items()
    }
    for owner in owners:
        kinds = option_types(owner)
        for option, declared in option_fields(owner).items():
            kind, help = kinds[option], declared.metadata["help"]
            optional = NoneType in get_args(kind)
            kind = get_args(kind)[0] if optional else kind
            if choices := declared.metadata["choices"]:
                kind = ChoiceEnum(choices)
            new = Optional[kind] if optional else kind, declared.default, help
            if help and str(options.setdefault(option, new)) != str(new):
                raise ValueError(f"--{option.replace('_', '-')}: is declared twice")
    fields = [
        (option, kind, field(default=default, metadata={"help": help}))
        for option, (kind, default, help) in options.items()
    ]
    return make_dataclass(
        name, fields, bases=(FairseqDataclass,), namespace={"__module__": __name__}
    )


NAMES = "; ".join(f"{kind.name} ({kind.help})" for kind in CONTROLLERS.values())
ControllerConfig = _config(
    "ControllerConfig",
    *CONTROLLERS.values(),
    controller=(f"decides how much to draft and verify: {NAMES}", "auto"),
)
"""Options of all controllers."""
RuleConfig = _config("RuleConfig", *RULES)
"""Options of all acceptance rules."""
LimitsConfig = _config("LimitsConfig", GenerationLimits)
"""Changes of the verifier's scores that are none of fairseq's options."""
EngineConfig = _config("EngineConfig", LoadedModels)
"""The engine of the models, and its precision."""
