"""The options of decoding as fairseq wants them, made from where each is declared."""

# No postponed annotations: fairseq reads the fields' types at run time.

from collections.abc import Mapping
from dataclasses import field, make_dataclass
from typing import Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from specdec_plugins.decoding.acceptance import RULE_OPTIONS
from specdec_plugins.decoding.controllers import POLICIES, controller_options
from specdec_plugins.decoding.controllers.registry import AUTO, PUBLISHED, RECOMMENDED
from specdec_plugins.decoding.engine_choice import ENGINE, OF_DRAFTER, OF_MODELS
from specdec_plugins.decoding.limits import REPETITION_PENALTY
from specdec_plugins.decoding.options import Option, by_name


def _config(name: str, options: Mapping[str, Option[object]]) -> type:
    """A fairseq dataclass with a field for every option."""
    fields = []
    for option in options.values():
        kind = ChoiceEnum(option.choices) if option.choices else option.kind
        kind = Optional[kind] if option.optional else kind
        metadata = {"help": option.help}
        fields.append((option.name, kind, field(default=option.default, metadata=metadata)))
    return make_dataclass(
        name, fields, bases=(FairseqDataclass,), namespace={"__module__": __name__}
    )


CONTROLLER = Option(
    "controller",
    AUTO,
    f"what decides how much to draft and verify: {AUTO} ({RECOMMENDED}, but in batches on a "
    f"CPU nothing unless output is relaxed; {PUBLISHED} with a drafter of --arch block); "
    + "; ".join(f"{policy.name} ({policy.help})" for policy in POLICIES.values()),
    str,
)
"""Its value is checked where it is used: a name that was taken away is refused by what to use
instead, and stands in no list."""

ControllerConfig = _config("ControllerConfig", {"": CONTROLLER, **controller_options()})
"""How much to draft and to verify."""
RuleConfig = _config("RuleConfig", RULE_OPTIONS)
"""The options of when drafted tokens are accepted."""
LimitsConfig = _config("LimitsConfig", by_name((REPETITION_PENALTY,)))
"""What changes the verifier's scores, and is none of fairseq's options."""
EngineConfig = _config("EngineConfig", by_name((ENGINE, OF_MODELS, OF_DRAFTER)))
"""What runs the models, and in which precision."""
