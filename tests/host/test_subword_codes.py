"""What is said of codes that ``subword_nmt`` did not make."""

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


@pytest.mark.parametrize(
    ("codes", "said"),
    [
        ("i n</w> 996\ne n 998\n", "codes holds codes of fastBPE, .* give --bpe fastbpe$"),
        (f"{PAIRS}\n{PAIRS}", "codes, line 3: is no pair of pieces; give codes that subword_nmt"),
        ("i n x\n", "codes, line 1: is no pair of pieces"),
        (f"#version: 9.9\n{PAIRS}", "codes, line 1: is no pair of pieces"),
        ("{}", "codes, line 1: is no pair of pieces"),
    ],
)
def test_what_is_none_of_its_codes(codes: str, said: str, tmp_path: Path) -> None:
    """It would print two lines and end the program."""
    (tmp_path / "codes").write_text(codes)
    with pytest.raises(ValueError, match=said):
        build_bpe(Namespace(bpe="subword_nmt", bpe_codes=str(tmp_path / "codes")))
