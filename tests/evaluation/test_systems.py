"""Which decoders a sweep has, and which it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specdec_plugins.decoding.acceptance import AcceptanceRule
from specdec_plugins.decoding.controllers import ControllerOptions
from specdec_plugins.evaluation.systems import CONTROLLERS, Choice, System, list_systems
from specdec_plugins.inference import Settings

BASE = Settings(data="d", path="drafter.pt", ar_path="verifier.pt", rule=AcceptanceRule(3, 1.0))


def with_options(**options: Any) -> Settings:
    return replace(BASE, controller=ControllerOptions("heuristic", **options))


def by_name(base: Settings = BASE, trained: int = 6, **choice: Any) -> dict[str, System]:
    systems = list_systems(base, Choice(**choice), trained)
    assert len({system.name for system in systems}) == len(systems)
    return {system.name: system for system in systems}


def test_everything_by_default() -> None:
    systems = by_name()
    assert {system.policy for system in systems.values()} == {"AR", "drafter", *CONTROLLERS}
    constants = [s.settings.block_size for s in systems.values() if s.policy == "constant"]
    assert constants == [1, 2, 3, 4, 6]
    assert systems["AR"].settings.strategy == "AR"
    assert systems["AR"].block_size is None
    assert systems["drafter"].settings.strategy == "drafter"
    assert all(system.settings.rule == BASE.rule for system in systems.values())
    assert systems["oracle k 6"].settings.block_size == 6


def test_every_threshold_for_every_k() -> None:
    systems = by_name(
        controllers=("confidence", "acceptance-head", "tree", "oracle"),
        block_sizes=(6, 2),
        confidence_thresholds=(0.25, 0.5),
        stop_thresholds=(0.7,),
        tree_nodes=(5,),
    )
    assert list(systems) == [
        "AR",
        "drafter",
        "confidence 0.25 k 6",
        "confidence 0.5 k 6",
        "acceptance-head 0.7 k 6",
        "tree 5 k 6",
        "oracle k 6",
        "confidence 0.25 k 2",
        "confidence 0.5 k 2",
        "acceptance-head 0.7 k 2",
        "tree 5 k 2",
        "oracle k 2",
    ]
    assert systems["tree 5 k 2"].settings.controller.tree_nodes == 5
    nodes = {name: system.tree_nodes for name, system in systems.items()}
    assert nodes == {name: 5 if name.startswith("tree") else None for name in systems}
    assert systems["confidence 0.25 k 2"].threshold == 0.25
    assert systems["acceptance-head 0.7 k 2"].threshold == 0.7
    assert systems["acceptance-head 0.7 k 2"].settings.controller.stop_threshold == 0.7
    assert systems["oracle k 2"].threshold is None


def test_cost_aware_with_and_without_a_named_head() -> None:
    assert list(by_name(controllers=("cost-aware",))) == ["AR", "drafter", "cost-aware k 6"]
    named = by_name(with_options(acceptance_head="head.pt"), controllers=("cost-aware",))
    assert not named["cost-aware k 6"].asks_head
    assert named["cost-aware k 6"].settings.controller.acceptance_head is None
    assert named["cost-aware head k 6"].asks_head
    doubtful = with_options(acceptance_head="head.pt", survival="confidence")
    both = by_name(doubtful, controllers=("cost-aware",))
    survival = {name: system.settings.controller.survival for name, system in both.items()}
    assert survival["cost-aware k 6"] == "tree"
    assert both["cost-aware k 6"].tree_nodes == 24
    assert both["cost-aware confidence k 6"].tree_nodes is None
    assert survival["cost-aware confidence k 6"] == "confidence"
    assert survival["cost-aware head k 6"] == "head"
    assert not both["cost-aware confidence k 6"].asks_head


def test_bounds_are_for_all_but_constant() -> None:
    base = with_options(min_draft=2, max_draft=5, refit_threshold=True)
    choice = {"controllers": ("constant", "confidence"), "confidence_thresholds": (0.4,)}
    systems = by_name(base, **choice)
    bounded = systems["confidence 0.4 refit k 6"].settings.controller
    assert (bounded.min_draft, bounded.max_draft, bounded.refit_threshold) == (2, 5, True)
    assert systems["constant k 6"].settings.controller == ControllerOptions()


def test_the_fewest_nodes() -> None:
    systems = by_name(with_options(min_draft=3), tree_nodes=(4, 9), block_sizes=(3,))
    assert systems["tree 4 k 3"].settings.controller.min_draft == 3
    assert systems["cost-aware k 3"].settings.controller.tree_nodes == 9
    with pytest.raises(ValueError, match="--min-draft 3: is above --tree-nodes 2"):
        by_name(with_options(min_draft=3), tree_nodes=(2, 9))


def test_what_was_asked_for_twice_is_there_once() -> None:
    systems = list_systems(BASE, Choice(("constant", "constant"), (2, 2)), 6)
    assert [system.name for system in systems] == ["AR", "drafter", "constant k 2"]


@pytest.mark.parametrize(
    ("choice", "options", "message"),
    [
        ({"controllers": ("none",)}, {}, "--controller none"),
        ({"constants": (7,)}, {}, "--constant-k 7: .* 1 to 6"),
        ({"constants": (0,)}, {}, "--constant-k 0"),
        ({"block_sizes": (4, 9)}, {}, "--block-size 9"),
        ({"confidence_thresholds": (1.5,)}, {}, "--confidence-threshold 1.5"),
        ({"stop_thresholds": (-0.1,)}, {}, "--stop-threshold -0.1"),
        ({}, {"max_draft": 7}, "--max-draft 7: is above the block size, 6"),
        ({"block_sizes": (3,)}, {"min_draft": 4}, "--min-draft 4: is above the block size, 3"),
    ],
)
def test_what_cannot_be_is_refused_by_its_flag(
    choice: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        by_name(with_options(**options), **choice)
