"""Loading shows that it works."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from helpers.runs.inference_runs import SENTENCES, make_settings

from specdec_plugins.inference import load_translator
from specdec_plugins.jobs.loading import LOADING, load


@pytest.mark.parametrize("quiet", [False, True])
def test_a_terminal_is_not_silent(
    quiet: bool, world: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first second on."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    settings = make_settings(world, strategy="AR", engine="eager")
    (found,) = load(settings, quiet).translate(SENTENCES[:1])
    (expected,) = load_translator(settings).translate(SENTENCES[:1])
    assert found.text == expected.text
    assert (f"\r{LOADING} (00:00)" in capsys.readouterr().err) is not quiet
