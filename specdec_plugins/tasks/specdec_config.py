"""The options of the task ``translation_specdec``."""

# No postponed annotations: fairseq reads the fields' types at run time.

from dataclasses import dataclass, field, make_dataclass
from typing import Any, Optional, get_args

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.tasks.translation import TranslationConfig
from omegaconf import II

from specdec_plugins.checkpoints.config import AS_TRANSFORMER
from specdec_plugins.decoding.acceptance import RULES
from specdec_plugins.decoding.controllers.base import CONTROLLERS
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.options import LoadedModels, option, option_fields, option_types

NAMES = "; ".join(f"{kind.name} ({kind.help})" for kind in CONTROLLERS.values())
OWNERS = (*CONTROLLERS.values(), *RULES, GenerationLimits, LoadedModels)


def _decoding_config() -> type:
    """Return a fairseq dataclass of the options of decoding that have a help."""
    about = {"help": f"decides how much to draft and verify: {NAMES}"}
    made: list[tuple[str, Any, Any]] = [("controller", str, field(default="auto", metadata=about))]
    kinds = option_types(*OWNERS)
    for name, declared in option_fields(*OWNERS).items():
        if help := declared.metadata["help"]:
            kind, *none = get_args(kinds[name]) or [kinds[name]]
            if choices := declared.metadata["choices"]:
                kind = ChoiceEnum(choices)
            stated = field(default=declared.default, metadata={"help": help})
            if none:
                kind = Optional[kind]
            made.append((name, kind, stated))
    return make_dataclass(
        "DecodingConfig", made, bases=(FairseqDataclass,), namespace={"__module__": __name__}
    )


#: The options of controllers, acceptance rules, limits and engines, from where each is declared.
DecodingConfig = _decoding_config()


@dataclass
class TranslationSpecdecConfig(DecodingConfig, TranslationConfig):  # type: ignore[misc, valid-type]
    """Options of the task: noise and glancing for training, the rest for generation."""

    noise: str = option("block_mask", "training noise", choices=("block_mask",))
    block_size: Optional[int] = option(
        None,
        "block size k: slots drafted in one pass (default: 5 for a new drafter; for a trained one, "
        "that of its training)",
        1,
    )
    blocks_per_sentence: int = option(
        1, "blocks scored per sentence and pass (above 1: block_causal only)", 1
    )
    start_p: float = option(0.5, "glancing ratio at update 0", 0, 1)
    minus_p: float = option(0.2, "decrease of the glancing ratio", 0, 1)
    total_up: int = option(300000, "updates over which the glancing ratio falls", 1)
    autocast: Optional[str] = option(
        None,
        "train on the CPU with matrix products in this type, bfloat16; parameters, optimizer and "
        "validation stay in float32",
        choices=("bfloat16",),
    )
    AR_path: Optional[str] = option(
        None,
        "verifier checkpoint: its states and labels in training, acceptance length in validation, "
        "verification in generation",
    )
    as_transformer: bool = option(False, AS_TRANSFORMER)
    temperature: float = option(1.0, "divide scores by this before they are judged or sampled")
    cpu: bool = II("common.cpu")
    fp16: bool = II("common.fp16")
    memory_efficient_fp16: bool = II("common.memory_efficient_fp16")
    amp: bool = II("common.amp")
    tpu: bool = II("common.tpu")
