"""What fairseq finds around itself and does not suit it: the locale, a TPU that is not there."""

from __future__ import annotations

import codecs
import locale
import logging
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdec_plugins.tasks.specdec_config import TranslationSpecdecConfig

logger = logging.getLogger(__name__)


def warn_of_locale() -> None:
    """Say that text will not be UTF-8, where that is so."""
    if not codecs.lookup(locale.getpreferredencoding(False)).name.startswith("utf-8"):
        logger.warning(
            "the locale is not UTF-8: fairseq reads and prints text in its encoding; set "
            "PYTHONUTF8=1"
        )


def refuse_tpu(cfg: TranslationSpecdecConfig) -> None:
    """End training for a TPU where there is none: ``fairseq-train`` takes ``--bf16`` for that.

    It ends the program, by one line: fairseq would show a traceback.
    """
    # It is no bool, but the name of fairseq's option, where no command line was parsed.
    if cfg.tpu is True and find_spec("torch_xla") is None:
        sys.exit(
            "fairseq-train: --bf16, --tpu: both are for a TPU in fairseq-train, and torch_xla is "
            "not installed; give --fp16 on a GPU, --autocast bfloat16 on a CPU, or train by "
            "fairseq-hydra-train with common.bf16=true"
        )
