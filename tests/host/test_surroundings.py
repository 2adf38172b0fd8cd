"""What fairseq finds around itself, and is told of."""

from __future__ import annotations

import locale

import pytest

from specdec_plugins.host.subword_codes import warn_of_locale


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
