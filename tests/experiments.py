"""Runs of an experiment, made up, of systems that are not loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdec_plugins.evaluation.bleu import References
from specdec_plugins.evaluation.controllers import Controllers, controlled_systems
from specdec_plugins.evaluation.peers import Peers, peer_systems
from specdec_plugins.evaluation.runs import Run, SentenceColumns
from specdec_plugins.evaluation.summary import Group, summarize
from specdec_plugins.evaluation.systems import System
from specdec_plugins.evaluation.texts import Sentences
from specdec_plugins.inference import Settings

BASE = Settings("data", path="drafter.pt", ar_path="verifier.pt", engine="eager")
PEERS = peer_systems(BASE, Peers(threads=(1, 2), beams=(1,), ctranslate2=("float32", "int8")))
"""Of fairseq one, of CTranslate2, AR and strict ``tree`` two each; all with 1 and 2 threads."""


def make_systems(base: Settings = BASE) -> dict[str, System]:
    """Of controllers, by name."""
    swept = {"confidence_threshold": (0.25, 0.75), "stop_threshold": (0.5, 0.9)}
    choice = Controllers(
        constants=(1, 2, 3, 4), block_sizes=(2, 3, 4), swept={**swept, "tree_nodes": (8, 16)}
    )
    if base.rule.draws:
        names = tuple(name for name in choice.names if name != "oracle")
        choice = Controllers(names, choice.constants, choice.block_sizes, choice.swept)
    return {one.name: one for one in controlled_systems(base, choice, 4, 1)}


SYSTEMS = make_systems()


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
    }
    return SentenceColumns(**{**columns, **changes})


def make_run(system: System | str = "constant k 3", **changes: Any) -> Run:
    """Two sentences of 8 tokens in a second, of round 1."""
    system = SYSTEMS[system] if isinstance(system, str) else system
    ours = system.strategy in ("specdec", "AR", "drafter")
    fields: dict[str, Any] = {
        "system": system.label,
        "text": "",
        "device": "cpu",
        "batch": 1,
        "round": 1,
        "began": "2025-01-01T00:00:00+00:00",
        "sentences": 2,
        "seconds": 1.0,
        "by_sentence": make_columns(0.4, 0.6),
        "engine": system.engine,
        "precision": system.precision,
        "memory": 5 * 2**20,
        "block_size": system.settings.block_size,
    }
    counted = {
        "control_seconds": 0.25,
        "committed_tokens": 8,
        "steps": 4,
        "acceptance_length": 2.0,
        "acceptance_rate": 0.4,
        "verification_rate": 0.5,
        "discard_rate": 1.0,
        "verified_discard_rate": 0.75,
    }
    return Run(**{**fields, **(counted if ours else {}), **changes})


def make_text(name: str = "", references: Sequence[str] | None = None) -> Sentences:
    """A text that nothing is asked of but its name and translation."""
    wanted = None if references is None else References(references, "de")
    return Sentences(name, [], [], [], wanted, codec=None)  # type: ignore[arg-type]


def make_groups(
    runs: Sequence[Run],
    systems: Sequence[System] | None = None,
    texts: Sequence[Sentences] | None = None,
    baseline: str = "AR",
) -> list[Group]:
    """What runs come to; of all controllers unless told otherwise."""
    known = list(SYSTEMS.values()) if systems is None else systems
    return summarize(runs, known, texts or [make_text()], baseline)


def make_group(runs: Sequence[Run], *more: Any, **given: Any) -> Group:
    """The only group that runs make."""
    (group,) = make_groups(runs, *more, **given)
    return group
