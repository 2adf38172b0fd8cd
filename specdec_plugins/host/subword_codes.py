"""fairseq's ``--bpe subword_nmt``, with codes that are UTF-8 in every locale."""

from __future__ import annotations

from fairseq import file_utils
from fairseq.data.encoders.subword_nmt_bpe import SubwordNMTBPE, SubwordNMTBPEConfig
from fairseq.registry import REGISTRIES


class Utf8SubwordBPE(SubwordNMTBPE):
    """fairseq's, which itself reads the codes in the locale's encoding.

    In a Latin-1 locale it cuts words otherwise than they were cut for training, and says nothing.
    """

    def __init__(self, cfg: SubwordNMTBPEConfig) -> None:
        """
        Raises:
            ImportError: there is no package ``subword_nmt``.
            OSError: the codes cannot be read.
            ValueError: they are not UTF-8.
        """
        from subword_nmt import apply_bpe

        path = file_utils.cached_path(cfg.bpe_codes)
        try:
            with open(path, encoding="utf-8") as codes:
                self.bpe = apply_bpe.BPE(codes, separator=cfg.bpe_separator)
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8: {error.reason}; convert it (iconv)") from error
        self.bpe_symbol = f"{cfg.bpe_separator} "


def read_codes_as_utf8() -> None:
    """Have all of fairseq's doors build this class: its commands, its hub interface and ours."""
    REGISTRIES["bpe"]["registry"]["subword_nmt"] = Utf8SubwordBPE
