"""The options of the task ``translation_specdec``."""

# No postponed annotations: fairseq reads the fields' types at run time.

from dataclasses import dataclass, field
from typing import Optional

from fairseq.dataclass import ChoiceEnum
from fairseq.tasks.translation import TranslationConfig
from omegaconf import II

from specdec_plugins.checkpoints.config import AS_TRANSFORMER
from specdec_plugins.models.block_causal import option_of
from specdec_plugins.tasks.decoding_config import (
    ControllerConfig,
    EngineConfig,
    LimitsConfig,
    RuleConfig,
)

# Names that the published code lists; all but the first crashed there.
NOISES = ("block_mask", "random_delete", "random_mask", "full_mask", "no_noise")

AUTOCAST = ("bfloat16",)


@dataclass
class TranslationSpecdecConfig(
    ControllerConfig, RuleConfig, LimitsConfig, EngineConfig, TranslationConfig
):
    """Options of the task: noise and glancing for training, the rest for generation."""

    noise: ChoiceEnum(NOISES) = field(  # type: ignore[valid-type]
        default="block_mask", metadata={"help": "training noise; only block_mask is supported"}
    )
    block_size: Optional[int] = option_of(
        None,
        "block size k: slots drafted in one pass; by default 5 for a new drafter, and what a "
        "trained one was trained for",
    )
    blocks_per_sentence: int = option_of(
        1, "blocks scored per sentence and pass (block_causal only, if above 1)"
    )
    start_p: float = option_of(0.5, "glancing ratio at update 0")
    minus_p: float = option_of(0.2, "decrease of the glancing ratio")
    total_up: int = option_of(300000, "updates over which the glancing ratio falls")
    autocast: Optional[ChoiceEnum(AUTOCAST)] = field(  # type: ignore[valid-type]
        default=None,
        metadata={
            "help": "train on the CPU with matrix products in this type; parameters, optimizer "
            "and validation stay in float32"
        },
    )
    AR_path: Optional[str] = field(
        default=None,
        metadata={
            "help": "verifier checkpoint: its states and labels in training, acceptance length in "
            "validation, verification in generation",
            "argparse_alias": "--AR-path",
        },
    )
    as_transformer: bool = option_of(False, AS_TRANSFORMER)
    temperature: float = option_of(1.0, "divides the scores that are judged, or drawn by")
    num_shards: int = II("dataset.num_shards")
    shard_id: int = II("dataset.shard_id")
    cpu: bool = II("common.cpu")
    tpu: bool = II("common.tpu")
    model_overrides: str = II("common_eval.model_overrides")
    fp16: bool = II("common.fp16")
    memory_efficient_fp16: bool = II("common.memory_efficient_fp16")
    amp: bool = II("common.amp")
