"""BPE codes of other programs, and other locales."""

from __future__ import annotations

import locale
from argparse import Namespace
from pathlib import Path

import pytest
from fairseq.data.encoders import build_bpe

from specdec_plugins.host.subword_codes import warn_of_locale

PAIRS = "i n</w>\ne n\n"


@pytest.mark.parametrize("codes", [PAIRS, f"#version: 0.2\n{PAIRS}", f"{PAIRS}\n\n", "i n\r\n"])
def test_codes_of_every_version(codes: str, tmp_path: Path) -> None:
    texts = []
    for mark in ("", "\ufeff"):
        (tmp_path / "codes").write_text(mark + codes, "utf-8", newline="")
        bpe = build_bpe(Namespace(bpe="subword_nmt", bpe_codes=str(tmp_path / "codes")))
        texts.append(bpe.encode("in"))
    assert texts in (["in"] * 2, ["i@@ n"] * 2)


@pytest.mark.parametrize(("encoding", "warned"), [("ISO-8859-1", True), ("utf8", False)])
def test_a_locale_that_is_not_utf8_is_warned_of(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    encoding: str,
    warned: bool,
) -> None:
    monkeypatch.setattr(locale, "getpreferredencoding", lambda _: encoding)
    warn_of_locale()
    assert ("the locale is not UTF-8" in caplog.text) == warned
