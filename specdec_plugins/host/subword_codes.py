"""fairseq's ``--bpe subword_nmt``, with codes that are UTF-8 in every locale."""

from __future__ import annotations

from typing import TextIO

from fairseq import file_utils
from fairseq.data.encoders.subword_nmt_bpe import SubwordNMTBPE, SubwordNMTBPEConfig
from fairseq.registry import REGISTRIES

VERSIONS = ("#version: 0.1", "#version: 0.2")


class Utf8SubwordBPE(SubwordNMTBPE):
    """fairseq's, which itself reads the codes in the locale's encoding.

    In a Latin-1 locale it cuts words otherwise than they were cut for training, and says nothing.
    """

    def __init__(self, cfg: SubwordNMTBPEConfig) -> None:
        """
        Raises:
            ImportError: there is no package ``subword_nmt``.
            OSError: the codes cannot be read.
            ValueError: they are not UTF-8, or another program's.
        """
        from subword_nmt import apply_bpe

        path = file_utils.cached_path(cfg.bpe_codes)
        try:
            with open(path, encoding="utf-8-sig") as codes:
                _check_codes(path, codes)
                self.bpe = apply_bpe.BPE(codes, separator=cfg.bpe_separator)
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8: {error.reason}; convert it (iconv)") from error
        self.bpe_symbol = f"{cfg.bpe_separator} "


def _check_codes(path: str, codes: TextIO) -> None:
    """Refuse what ``subword_nmt`` would end the program for.

    Raises:
        ValueError: a line is not two pieces, as fastBPE's are not, which ends them by a count.
    """
    for number, line in enumerate(codes.read().rstrip("\n").split("\n"), 1):
        parts = line.strip("\r\n ").split(" ")
        known = not line.startswith("#version:") or line.strip() in VERSIONS
        if len(parts) == 2 and (known or number > 1):
            continue
        if len(parts) == 3 and parts[2].isdecimal():
            raise ValueError(
                f"{path} holds codes of fastBPE, whose lines end with a count; give --bpe fastbpe"
            )
        raise ValueError(
            f"{path}, line {number}: is no pair of pieces; give codes that subword_nmt has learned"
        )


def read_codes_as_utf8() -> None:
    """Have all of fairseq's doors build this class: its commands, its hub interface and ours."""
    REGISTRIES["bpe"]["registry"]["subword_nmt"] = Utf8SubwordBPE
