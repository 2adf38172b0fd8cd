"""BPE codes of other programs."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
from fairseq.data.encoders import build_bpe

PAIRS = "i n</w>\ne n\n"


@pytest.mark.parametrize("codes", [PAIRS, f"#version: 0.2\n{PAIRS}", f"{PAIRS}\n\n", "i n\r\n"])
def test_codes_of_every_version(codes: str, tmp_path: Path) -> None:
    texts = []
    for mark in ("", "\ufeff"):
        (tmp_path / "codes").write_text(mark + codes, "utf-8", newline="")
        bpe = build_bpe(Namespace(bpe="subword_nmt", bpe_codes=str(tmp_path / "codes")))
        texts.append(bpe.encode("in"))
    assert texts in (["in"] * 2, ["i@@ n"] * 2)
