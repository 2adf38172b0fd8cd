"""What is said before a making that cannot end well, or not as well as it might."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from specdec_plugins.files.errors import InferenceError
from specdec_plugins.jobs.make_pair.job import PairJob
from specdec_plugins.jobs.make_pair.make import check_room, warn_of_little
from specdec_plugins.jobs.make_pair.stages import head_updates


@pytest.fixture
def job(tmp_path: Path) -> PairJob:
    for name in ("verifier.pt", "text"):
        (tmp_path / name).touch()
    out = tmp_path / "not/yet/there"
    return PairJob(tmp_path / "verifier.pt", tmp_path / "text", out, tmp_path, ("en", "de"))


def test_a_disk_without_room_is_refused(job: PairJob) -> None:
    check_room(job)
    # A file of holes takes no room itself.
    os.truncate(job.sources, shutil.disk_usage(job.sources).free // 8 + 10**9)
    with pytest.raises(InferenceError, match=r"about \d+\.\d GB are needed there, and \d+\.\d are"):
        check_room(job)
    job.layout.training.mkdir(parents=True)
    check_room(job)  # most of it is written


@pytest.mark.parametrize("lines", [4999, 5000])
def test_few_lines_are_warned_of(
    job: PairJob, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_little(job, {"lines": {"valid": 10, "train": lines - 10}})
    assert ("has 4999 lines; of fewer than" in caplog.text) == (lines < 5000)


@pytest.mark.parametrize(("lines", "updates"), [(15, 100), (200, 100), (500, 250), (20_000, 400)])
def test_a_head_is_trained_as_long_as_it_learns(lines: int, updates: int) -> None:
    assert head_updates(lines) == updates
