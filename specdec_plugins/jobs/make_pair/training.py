"""Trainings: how many updates fit the budget, and fairseq-train in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from specdec_plugins.checkpoints.loading import load_state
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.jobs.make_pair.job import Command, PairJob, shown
from specdec_plugins.machine import python_path, python_program

FIRST = 60
"""Updates by which the speed is measured."""
WARMUP = 500
"""Maximum updates of rising learning rate; a tenth of all, if that is fewer."""
VALIDATIONS, BETWEEN = 20, 50
"""Maximum validations of a training, and minimum updates between two."""
SHARE = 0.1
"""Share of the time that validations may take."""
LAST, BEST = "checkpoint_last.pt", "checkpoint_best.pt"
START = "$ "
"""The beginning of a log's line that shows the command which logs the next lines."""
LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) \| INFO \| (train_inner|valid) \| (.*)")
CHILD = """\
import os, signal, threading
signal.signal(signal.SIGINT, signal.SIG_IGN)
threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
"""
"""Ends a child with its parent, and leaves interruptions to the parent. A read of ``sys.stdin``
would hold a lock for which Python waits, and aborts, when the child is done."""
PROGRAMS = {
    "specdec-train": "from specdec_plugins.cli.train import main; sys.exit(main())",
    "fairseq-preprocess": "from fairseq_cli.preprocess import cli_main; cli_main()",
}
"""Code of the commands that run in a process of their own."""


class TrainingLog:
    """Figures in a log of fairseq-train's ``--log-format json``; damaged lines are passed over."""

    def __init__(self, path: Path) -> None:
        self.updates = 0
        self.points: dict[int, float] = {}
        """Acceptance length of each validation, by update."""
        self.validation = 0.0
        """Seconds of the last validation."""
        seconds, count = 0.0, 0
        before: datetime | None = None
        for line in path.read_text("utf-8", "replace").splitlines() if path.exists() else ():
            if line.startswith(START):
                before = None
            if not (match := LINE.match(line)):
                continue
            with suppress(ValueError, KeyError):
                now, values = datetime.fromisoformat(match[1]), json.loads(match[3])
                passed = (now - before).total_seconds() if before else 0.0
                if match[2] == "valid":
                    length = float(values["valid_acceptance_length"])
                    self.points[int(values["valid_num_updates"])] = length
                    self.validation = passed or self.validation
                    before = None
                    continue
                updates = int(values["num_updates"])
                if before:
                    count += updates - self.updates
                    seconds += passed
                self.updates, before = updates, now
        # Where nothing was counted the hours alone end the training.
        self.pace = max(1e-3, seconds / max(1, count))
        """Seconds an update, without validations and restarts; the log's times are whole
        seconds."""


@dataclass(frozen=True)
class Plan:
    """The length of a training."""

    updates: int
    """The update at which it ends, and its learning rate is 0."""
    interval: int
    """Updates between validations."""
    hours: float = 0.0
    """Training stops after so many hours; 0: it does not."""

    @classmethod
    def of_updates(cls, updates: int) -> Plan:
        interval = max(BETWEEN, -(-updates // VALIDATIONS))
        # Two validations of almost the same drafter would tell nothing.
        return cls(updates, updates if updates < 2 * interval else interval)

    @classmethod
    def of_time(cls, seconds: float, log: TrainingLog, done: int, trained: float) -> Plan:
        """Return the plan that fills so many more seconds.

        Args:
            done: updates until now.
            trained: seconds of training until now.
        """
        pace = log.pace
        updates = done + max(1, int(seconds * (1 - SHARE) / pace))
        interval = max(BETWEEN, -(-updates // VALIDATIONS), int(log.validation / pace / SHARE) + 1)
        return cls(updates, interval, (trained + seconds) / 3600)


def head_updates(lines: int) -> int:
    """Return the updates of a head's training, of about 50 lines each.

    When a head has read a text 25 times, it has learnt from it what it can.
    """
    return min(400, max(100, 25 * lines // 50))


def trained(checkpoint: Path) -> tuple[int, float]:
    """Return the updates and seconds of a checkpoint's training; 0 where there is none."""
    if not checkpoint.exists():
        return 0, 0.0
    state = load_state(checkpoint)
    seconds = state["extra_state"].get("previous_training_time")
    return state["num_updates"], seconds if isinstance(seconds, float) else 0.0


def watch(job: PairJob, command: Command, log: Path, total: int | None = None) -> None:
    """Run a command in a process of its own, which ends with this one and adds to a log.

    Args:
        total: updates of a training, whose progress is shown.
    """
    name, *arguments = command
    program = python_program(f"{CHILD}{PROGRAMS[str(name)]}", *arguments)
    environment = {**os.environ, "PYTHONPATH": python_path(), "PYTHONUTF8": "1"}
    before = TrainingLog(log)
    with open(log, "ab") as file, job.bar(total, "update", before.updates) as bar:
        file.write(f"{START}{shown(command)}\n".encode())
        file.flush()
        child = subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=file, stderr=file, env=environment
        )
        try:
            while child.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    child.wait(0.5)
                now = TrainingLog(log)
                bar.update(now.updates - bar.n)
                for updates in sorted(now.points.keys() - before.points.keys()):
                    length = f"acceptance length {now.points[updates]:.2f}"
                    bar.set_postfix_str(length)
                    if bar.disable:
                        job.say(f"  {updates} updates of {total}: {length}")
                before = now
        finally:
            child.kill()
            child.wait()
    if child.returncode:
        last = log.read_text("utf-8", "replace").strip().splitlines()[-1]
        raise InferenceError(f"{last}; all that it said is in {log}")
