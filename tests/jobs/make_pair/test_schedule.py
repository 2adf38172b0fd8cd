"""How a drafter's training is cut into parts, and what they are made to follow."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specdec_plugins.jobs.make_pair import schedule
from specdec_plugins.jobs.make_pair.schedule import FIRST, LAST, SHORT, Part, Schedule
from specdec_plugins.jobs.make_pair.training_log import TrainingLog

AT = "2026-11-25 10:{:02d}:{:02d} | INFO | {} | {}\n"


def inner(updates: int, wall: float) -> str:
    return f'{{"epoch": 1, "num_updates": "{updates}", "train_wall": "{wall}"}}'


def valid(updates: int, length: float) -> str:
    found = f'"valid_acceptance_length": "{length}", "valid_num_updates": "{updates}"'
    return f'{{"epoch": 1, {found}}}'


def write_log(path: Path, each: float, updates: int = 20) -> TrainingLog:
    lines = [AT.format(0, 0, "train_inner", inner(n, 5 * each)) for n in range(5, updates + 1, 5)]
    begun = 'begin validation on "valid" subset'
    lines += [AT.format(1, 0, "fairseq_cli.train", begun), AT.format(1, 4, "valid", valid(20, 1.5))]
    path.write_text("".join(lines) + "no line of a log\n", "utf-8")
    return TrainingLog(path)


@pytest.fixture
def spent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    """What the last checkpoint says: the first of these."""
    found = [(0, 0.0)]
    monkeypatch.setattr(schedule, "trained", lambda _: found[0])
    return found


def test_updates_are_one_part_that_is_gone_on_with(
    tmp_path: Path, spent: list[tuple[int, float]]
) -> None:
    log = TrainingLog(tmp_path / "none")
    part = Schedule(updates=4000).next(tmp_path, log)
    assert part == Part(4000, 4000, 200)
    # One measurement, not one shortly before the last update and one after it.
    assert Schedule(updates=60).next(tmp_path, log) == Part(60, 60, 60)
    spent[0] = 3000, 50.0
    assert Schedule(updates=4000).next(tmp_path, log) == part
    spent[0] = 4000, 70.0
    assert Schedule(updates=4000).next(tmp_path, log) is None


@pytest.mark.parametrize("each", [0.1, 1.0, 7.0])
def test_hours_are_spent_whatever_an_update_takes(
    tmp_path: Path, spent: list[tuple[int, float]], each: float
) -> None:
    budget, log = Schedule(seconds=3600.0), TrainingLog(tmp_path / "none")
    done, seconds, parts = 0, 0.0, []
    while part := budget.next(tmp_path, log):
        assert part.until <= part.total
        # It stops at its hours, and validations take their share.
        made = min(part.until - done, int((3600 * part.hours - seconds) / each) + 1)
        done, seconds = done + made, seconds + made * each * 1.05
        spent[0] = done, seconds
        log = write_log(tmp_path / "log", each)
        parts.append(part)
    assert parts[0].until == parts[0].expected == FIRST
    assert parts[-1].expected == parts[-1].total
    assert 3600 - SHORT < seconds < 3600 + 8 * each
    assert done >= 0.95 * parts[-1].total or seconds >= 3600


def test_validations_take_a_tenth_at_most(tmp_path: Path, spent: list[tuple[int, float]]) -> None:
    spent[0] = FIRST, 20.0
    log = write_log(tmp_path / "log", 0.01)
    assert log.seconds_an_update == pytest.approx(0.01)
    part = Schedule(seconds=600.0).next(tmp_path, log)
    assert part is not None
    assert log.validations == [4.0]
    assert part.interval * 0.01 >= 10 * 4.0


def test_a_log_of_a_training_that_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    lines = [
        ("train_inner", inner(10, 5)),
        ("valid", valid(10, 1.2)),
        ("train_inner", inner(20, 7)),
        ("train_inner", inner(15, 8)),
        ("valid", valid(10, 1.25)),
        ("train_inner", inner(30, 6)),
        ("train_inner", '{"num_upda'),
    ]
    path.write_text("".join(AT.format(0, 0, *line) for line in lines), "utf-8")
    log = TrainingLog(path)
    assert log.seconds_an_update == (5 + 7 + 6) / 30
    assert (log.updates, log.seconds) == (30, 18.0)
    assert [(one.updates, one.acceptance_length) for one in log.points.values()] == [(10, 1.25)]


def test_what_a_checkpoint_says_of_its_training(trained: object, tmp_path: Path) -> None:
    path = trained.drafter  # type: ignore[attr-defined]
    state = torch.load(path, weights_only=False)
    updates, seconds = schedule.trained(path)
    assert updates == state["optimizer_history"][-1]["num_updates"] > 0
    assert seconds == state["extra_state"]["previous_training_time"] > 0
    assert schedule.trained(tmp_path / LAST) == (0, 0.0)
