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


@dataclass(frozen=True)
class Point:
    """A validation."""

    updates: int
    acceptance_length: float
    seconds: float
    """Of training until then."""


class TrainingLog:
    """Updates and validations; what was logged twice, since a training was killed, counts once."""

    def __init__(self, path: Path) -> None:
        self.updates = 0
        """The last that was logged."""
        self.seconds = 0.0
        """Of training until then."""
        self.points: dict[int, Point] = {}
        """Validations, by update."""
        self.speeds: list[float] = []
        """Seconds an update, between lines of the log."""
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
                self._updated(int(stats["num_updates"]), float(stats["wall"]))
        except (ValueError, KeyError):
            return

    def _updated(self, updates: int, seconds: float) -> None:
        if updates > self.updates and seconds > self.seconds and self.updates:
            self.speeds.append((seconds - self.seconds) / (updates - self.updates))
        self.updates, self.seconds = updates, seconds

    def _validated(self, at: datetime, stats: dict[str, str]) -> None:
        updates = int(stats["valid_num_updates"])
        length = float(stats["valid_acceptance_length"])
        self.points[updates] = Point(updates, length, self.seconds)
        if self._begun is not None:
            self.validations.append((at - self._begun).total_seconds())
