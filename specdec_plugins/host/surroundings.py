"""What fairseq finds around itself and does not suit it: the locale, a device that is not there."""

from __future__ import annotations

import codecs
import locale
import logging
import sys
from importlib.util import find_spec
from typing import Protocol

import torch

logger = logging.getLogger(__name__)


class TrainingPrecision(Protocol):
    """fairseq's options of a device and a precision, as a task's configuration has them."""

    cpu: bool
    tpu: bool
    fp16: bool
    memory_efficient_fp16: bool
    amp: bool


def warn_of_locale() -> None:
    """Say that text will not be UTF-8, where that is so."""
    if not codecs.lookup(locale.getpreferredencoding(False)).name.startswith("utf-8"):
        logger.warning(
            "the locale is not UTF-8: fairseq reads and prints text in its encoding; set "
            "PYTHONUTF8=1"
        )


def refuse_precision(cfg: TrainingPrecision) -> None:
    """End training that is asked for in a precision which this machine has nothing for.

    It ends the program, by one line: fairseq would show a traceback, or train in float32 all the
    same.
    """
    # They are no bools, but the names of fairseq's options, where no command line was parsed.
    if cfg.tpu is True and find_spec("torch_xla") is None:
        sys.exit(
            "fairseq-train: --bf16, --tpu: both are for a TPU in fairseq-train, and torch_xla is "
            "not installed; give --fp16 on a GPU, --autocast bfloat16 on a CPU, or train by "
            "fairseq-hydra-train with common.bf16=true"
        )
    if torch.cuda.is_available() and cfg.cpu is not True:
        return
    for flag, given in (
        ("--fp16", cfg.fp16 is True and cfg.memory_efficient_fp16 is not True),
        ("--amp", cfg.amp is True),
    ):
        if given:
            sys.exit(
                f"fairseq-train: {flag}: needs a GPU; on a CPU leave it out, or turn off a "
                f"recipe's by --no-{flag[2:]}, and give --autocast bfloat16"
            )
