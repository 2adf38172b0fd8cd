"""What fairseq-train said with ``--log-format json``."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

LINE = re.compile(
    r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) \| INFO \| (train_inner|valid|fairseq_cli\.train) \| (.*)$"
)
BEGINS = "begin validation"
RECENT = 50
"""Lines by which the speed is told; fairseq rounds their seconds to whole ones."""
LEAST = 1e-3
"""Seconds of an update, where so few were made that all rounds to none."""


@dataclass(frozen=True)
class Point:
    """A validation."""

    updates: int
    acceptance_length: float
    seconds: float
    """Of training and validating until then, without what an interruption lost."""


class TrainingLog:
    """Updates and validations; what was logged twice, since a training was killed, counts once."""

    def __init__(self, path: Path) -> None:
        self.updates = 0
        """The last that was logged."""
        self.seconds = 0.0
        """Of training and validating until then, without what an interruption lost."""
        self.points: dict[int, Point] = {}
        """Validations, by update."""
        self._walls: list[tuple[int, float]] = []
        """Updates and seconds, between lines of the log."""
        self.validations: list[float] = []
        """Seconds of each."""
        self._begun: datetime | None = None
        if path.exists():
            for line in path.read_text("utf-8", "replace").splitlines():
                if found := LINE.match(line):
                    self._read(datetime.fromisoformat(found[1]), found[2], found[3])

    def _read(self, at: datetime, name: str, text: str) -> None:
        if name == "fairseq_cli.train":
            if text.startswith(BEGINS):
                self._begun = at
            return
        try:
            stats = json.loads(text)
            if name == "valid":
                self._validated(at, stats)
            else:
                self._updated(int(stats["num_updates"]), float(stats["train_wall"]))
        except (ValueError, KeyError):
            return

    @property
    def seconds_an_update(self) -> float | None:
        """Of those that were logged last; None where there are none."""
        last = self._walls[-RECENT:]
        return max(LEAST, sum(wall for _, wall in last) / sum(n for n, _ in last)) if last else None

    def _updated(self, updates: int, seconds: float) -> None:
        """
        Args:
            seconds: of training since the line before, which fairseq rounds.
        """
        if updates > self.updates:
            self._walls.append((updates - self.updates, seconds))
            self.updates, self.seconds = updates, self.seconds + seconds

    def _validated(self, at: datetime, stats: dict[str, str]) -> None:
        updates = int(stats["valid_num_updates"])
        length = float(stats["valid_acceptance_length"])
        if self._begun is not None:
            self.validations.append((at - self._begun).total_seconds())
            self.seconds += 0.0 if updates in self.points else self.validations[-1]
        self.points[updates] = Point(updates, length, self.seconds)
