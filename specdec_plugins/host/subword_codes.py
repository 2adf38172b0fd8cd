"""Text in every locale: a warning, and BPE codes that are read as UTF-8."""

from __future__ import annotations

import codecs
import locale
import logging

from fairseq import file_utils
from fairseq.data.encoders.subword_nmt_bpe import SubwordNMTBPE, SubwordNMTBPEConfig
from fairseq.registry import REGISTRIES

logger = logging.getLogger(__name__)


class Utf8SubwordBPE(SubwordNMTBPE):
    """Read codes as UTF-8, where fairseq reads them in the locale's encoding.

    In a Latin-1 locale fairseq cuts words differently than in training, without a warning.
    """

    def __init__(self, cfg: SubwordNMTBPEConfig) -> None:
        from subword_nmt import apply_bpe

        path = file_utils.cached_path(cfg.bpe_codes)
        try:
            with open(path, encoding="utf-8-sig") as text:
                self.bpe = apply_bpe.BPE(text, separator=cfg.bpe_separator)
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8: {error.reason}; convert it (iconv)") from error
        if self.bpe.version not in ((0, 1), (0, 2)):
            raise ValueError(f"{path}: subword-nmt has no version {self.bpe.version} of codes")
        self.bpe_symbol = f"{cfg.bpe_separator} "


# For fairseq's commands, its hub interface and ours.
REGISTRIES["bpe"]["registry"]["subword_nmt"] = Utf8SubwordBPE


def warn_of_locale() -> None:
    """Warn if fairseq will not read and print UTF-8."""
    if not codecs.lookup(locale.getpreferredencoding(False)).name.startswith("utf-8"):
        logger.warning("the locale is not UTF-8, and fairseq uses its encoding; set PYTHONUTF8=1")
