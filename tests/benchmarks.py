"""Measurements of a benchmark, made up, and processes that are none."""

from __future__ import annotations

from typing import Any

from specdec_plugins.evaluation.benchmark.measurements import Measurement
from specdec_plugins.evaluation.benchmark.systems import BenchmarkSystem, Choice, list_systems
from specdec_plugins.evaluation.benchmark.worker import Answer, Decoder, Job

SYSTEMS = list_systems(Choice(threads=(1, 2), beams=(1,), ctranslate2=("float32", "int8")))
"""Of fairseq one, of CTranslate2, AR and strict ``tree`` two each; all with 1 and 2 threads."""
TEXTS = ["ein Hund läuft durch den Schnee .", "zwei Männer sitzen auf einer Bank ."]


def make_measurement(system: BenchmarkSystem, **changes: Any) -> Measurement:
    """Two sentences in a second, of round 1."""
    drafting = {"acceptance_length": 4.0, "verification_rate": 0.25, "discard_rate": 3.0}
    fields: dict[str, Any] = {
        "system": system.label,
        "batch": 1,
        "round": 1,
        "began": "2025-01-01T00:00:00+00:00",
        "sentences": 2,
        "seconds": 1.0,
        "peak_memory": 3 * 2**20,
        "output": TEXTS if changes.get("round", 1) == 1 else [],
        **({**drafting, "block_size": 4} if system.drafts else {}),
    }
    return Measurement(**{**fields, **changes})


def make_measurements(rounds: int = 3, batch: int = 1) -> list[Measurement]:
    """Of all ``SYSTEMS``: each takes longer than the one before, and later rounds longer still."""
    return [
        make_measurement(system, batch=batch, round=number, seconds=number * (1 + place))
        for number in range(1, rounds + 1)
        for place, system in enumerate(SYSTEMS)
    ]


class InThisProcess:
    """In place of a ``SystemProcess``: loads and decodes where it is made."""

    def __init__(self, name: str, job: Job, threads: int) -> None:
        self.name = name
        self._decoder: Decoder = job.load()

    def __enter__(self) -> InThisProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def wait(self) -> Answer:
        return Answer(None, 2**20)

    def decode(self, batches: int) -> Answer:
        return Answer(self._decoder.decode(batches), 2**21)
