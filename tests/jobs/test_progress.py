"""Progress without a terminal."""

from __future__ import annotations

import pytest

from specdec_plugins.jobs import progress


def test_short_work_without_a_terminal_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    for options in ({}, {"unit": "run"}):
        with progress(False, "loading", **options) as bar:
            bar.set_description_str("another name")
            bar.update()
    assert capfd.readouterr() == ("", "")
