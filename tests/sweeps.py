"""Runs of a sweep, made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specdec_plugins.evaluation.folder import read_lines
from specdec_plugins.evaluation.runs import Run, SentenceColumns


def make_columns(*seconds: float, **changes: Any) -> SentenceColumns:
    """Sentences on lines 1, 2, … of 4 tokens in 2 steps each; ``changes`` are whole columns."""
    count = len(seconds)
    columns: dict[str, list[Any]] = {
        "line": list(range(1, count + 1)),
        "seconds": list(seconds),
        "steps": [2] * count,
        "drafted_tokens": [6] * count,
        "verified_tokens": [5] * count,
        "accepted_tokens": [2] * count,
        "committed_tokens": [4] * count,
        "output": [],
        "accepted_by_step": [],
        "trace": [],
    }
    return SentenceColumns(**{**columns, **changes})


SAMPLED = {"rule": "sampling", "rule_options": {"sampling": True}, "temperature": 0.7}
"""Of a run that was drawn."""


def make_run(system: str = "constant k 3", **changes: Any) -> Run:
    """A run of one second, whose policy is the name's first word."""
    policy = system.split()[0]
    fields: dict[str, Any] = {
        "system": system,
        "text": "",
        "policy": policy,
        "kind": policy,
        "block_size": None if policy == "AR" else 3,
        "threshold": None,
        "tree_nodes": 9 if policy in ("tree", "cost-aware") else None,
        "asks_head": policy == "acceptance-head",
        "options": {"policy": policy, "min_draft": 0},
        "rule": "strict",
        "rule_options": {"beta": 1, "tau": 0.0},
        "temperature": 1.0,
        "batch": 1,
        "device": "cpu",
        "engine": "eager",
        "precision": "float32",
        "threads": 1,
        "round": 1,
        "began": "2025-01-01T00:00:00+00:00",
        "sentences": 2,
        "seconds": 1.0,
        "control_seconds": 0.25,
        "committed_tokens": 8,
        "steps": 4,
        "drafted_tokens": 12,
        "verified_tokens": 10,
        "accepted_tokens": 4,
        "verifier_calls": 4,
        "drafter_calls": 4,
        "acceptance_length": 2.0,
        "acceptance_rate": 0.4,
        "verification_rate": 0.5,
        "discard_rate": 1.0,
        "verified_discard_rate": 0.75,
        "tokens_per_second": 8.0,
        "memory": 5 * 2**20,
        "by_sentence": make_columns(0.4, 0.6),
    }
    return Run(**{**fields, **changes})


def read_runs(path: Path) -> list[Run]:
    """All that are in a file."""
    return read_lines(path, Run.from_json)
