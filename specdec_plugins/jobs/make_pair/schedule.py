"""The training of a drafter to a budget of updates or of hours, which its learning rate follows.

How long an update takes here is known only once some were made. So a budget of hours is trained in
parts: a short first one, and then always about half of what is left, after which the number of
updates that fit, over which the learning rate falls, is estimated anew. A budget of updates is one
part.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median

from specdec_plugins.checkpoints.loading import load_state
from specdec_plugins.jobs.make_pair.training_log import TrainingLog

FIRST = 60
"""Updates of the first part, by which the speed is measured."""
WARMUP = 500
"""Most updates of rising learning rate; a tenth of all, if those are fewer."""
SHORT = 600.0
"""Seconds that are trained in one part."""
END = 0.05
"""Part of the hours that is left unused: it is not worth another part."""
VALIDATIONS, BETWEEN = 20, 50
"""Validations of a training, at most, and the least updates between two."""
SHARE = 0.1
"""Of the time, that validations may take."""
LAST, BEST = "checkpoint_last.pt", "checkpoint_best.pt"


@dataclass(frozen=True)
class Part:
    """What a run of fairseq-train is to do."""

    until: int
    """Its last update."""
    total: int
    """The update at which the learning rate is to be 0."""
    interval: int
    """Updates between validations."""
    hours: float = 0.0
    """Of training, after which it stops whatever it has done; 0: none."""

    @property
    def expected(self) -> int:
        """Updates of the whole training, as far as they can be told: the first part is to tell."""
        return self.total if self.until > FIRST else self.until

    @property
    def flags(self) -> list[str]:
        return [
            f"--max-update={self.until}",
            f"--total-num-update={self.total}",
            f"--total-up={self.total}",
            f"--warmup-updates={max(1, min(WARMUP, self.total // 10))}",
            f"--validate-interval-updates={self.interval}",
            f"--save-interval-updates={self.interval}",
            f"--log-interval={max(1, min(10, self.until // 4))}",
            *([f"--stop-time-hours={self.hours:.5f}"] if self.hours else []),
        ]


@dataclass(frozen=True)
class Schedule:
    """A budget, of which one is given."""

    updates: int | None = None
    seconds: float | None = None

    def next(self, folder: Path, log: TrainingLog) -> Part | None:
        """What is to be trained next; None where the budget is spent.

        Args:
            folder: of the checkpoints.
            log: what was said until now.
        """
        done, spent = trained(folder / LAST)
        if self.updates is not None:
            every = max(BETWEEN, -(-self.updates // VALIDATIONS))
            if self.updates < 2 * every:
                every = self.updates  # else two would be of almost the same
            return Part(self.updates, self.updates, every) if done < self.updates else None
        assert self.seconds is not None
        left, hours = self.seconds - spent, self.seconds / 3600
        if left <= END * self.seconds:
            return None
        each = log.seconds_an_update
        if not done or each is None:
            return Part(FIRST, 10 * WARMUP, FIRST, hours)
        validation = median(log.validations) if log.validations else 0.0
        rest = int(left * (1 - SHARE) / each)
        if rest < 1:
            return None
        total = done + rest
        until = total if left < SHORT else done + rest // 2
        every = max(BETWEEN, -(-total // VALIDATIONS), int(validation / each / SHARE) + 1)
        return Part(until, total, every, hours)


def trained(checkpoint: Path) -> tuple[int, float]:
    """The updates and the seconds that a checkpoint's training took; 0 where there is none.

    Raises:
        CheckpointError: it cannot be read.
    """
    if not checkpoint.exists():
        return 0, 0.0
    state = load_state(checkpoint)
    seconds = state["extra_state"].get("previous_training_time", 0.0)
    return state["num_updates"], float(seconds) if isinstance(seconds, (int, float)) else 0.0
