"""Made-up runs of systems that are not loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdec_plugins.evaluation.bleu import References
from specdec_plugins.evaluation.experiment import Experiment, Run
from specdec_plugins.evaluation.texts import Sentences
from specdec_plugins.evaluation.worker import Sentence
from specdec_plugins.files.lines import Line
from specdec_plugins.inference import Settings
from specdec_plugins.inference.systems import parse_system

BASE = Settings("data", path="drafter.pt", ar_path="verifier.pt", engine="eager")


def make_text(name: str = "in.en", references: Sequence[str] | None = None) -> Sentences:
    """Two sentences."""
    wanted = None if references is None else References(references, "de")
    sentences = [Sentence(Line(1, "a b"), ["a", "b"], 9), Sentence(Line(3, "c"), ["c"], 9)]
    return Sentences(name, sentences, wanted, codec=None, positions=99)  # type: ignore[arg-type]


def make_experiment(*names: str, **changes: Any) -> Experiment:
    systems = {name: parse_system(name, BASE) for name in names}
    return Experiment(systems, changes.pop("texts", [make_text()]), **changes)


def make_run(name: str, **changes: Any) -> Run:
    """Two sentences of 8 tokens in a second, of round 1."""
    fields: dict[str, object] = {
        "system": name,
        "text": "in.en",
        "threads": 1,
        "batch": 1,
        "round": 1,
        "began": "2026-01-01T00:00:00+00:00",
        "engine": "eager",
        "precision": "float32",
        "seconds": 1.0,
        "outputs": ["x", "y"],
    }
    if not name.startswith(("fairseq", "ctranslate2")):
        counts = {"committed_tokens": 8, "steps": 4, "drafted_tokens": 12, "verified_tokens": 10}
        fields["counts"] = {**counts, "accepted_tokens": 4, "verifier_calls": 4, "drafter_calls": 4}
    return Run(**{**fields, **changes})
