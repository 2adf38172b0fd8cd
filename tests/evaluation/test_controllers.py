"""Which decoders a sweep has, and which it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specdec_plugins.decoding.acceptance import RelaxedRule, SamplingRule
from specdec_plugins.decoding.controllers import ControllerOptions
from specdec_plugins.evaluation.controllers import CONTROLLERS, Controllers, controlled_systems
from specdec_plugins.evaluation.systems import System
from specdec_plugins.inference import Settings

BASE = Settings(data="d", path="drafter.pt", ar_path="verifier.pt", rule=RelaxedRule(3, 1.0))


def systems(trained: int = 6, options: Any = None, **choice: Any) -> dict[str, System]:
    """By name; ``options`` are those of all controllers, as a mapping."""
    base = replace(BASE, controller=ControllerOptions("heuristic", **(options or {})))
    found = controlled_systems(base, Controllers(**choice), trained, 1)
    assert len({system.name for system in found}) == len(found)
    return {system.name: system for system in found}


def settings(system: System) -> dict[str, Any]:
    """Of its controller, those that are not the default."""
    return dict(system.settings.controller.given)


def test_everything_by_default() -> None:
    found = systems()
    assert {system.policy for system in found.values()} == {"AR", "drafter", *CONTROLLERS}
    assert "none" not in CONTROLLERS
    constants = [s.settings.block_size for s in found.values() if s.policy == "constant"]
    assert constants == [1, 2, 3, 4, 6]
    assert [found[name].settings.strategy for name in ("AR", "drafter")] == ["AR", "drafter"]
    sizes = [found[name].settings.block_size for name in ("AR", "drafter", "oracle k 6")]
    assert sizes == [None, 6, 6]
    assert all(system.settings.rule == BASE.rule for system in found.values())
    thresholds = [s.threshold for s in found.values() if s.policy == "acceptance-head"]
    assert thresholds == [0.1, 0.3, 0.5, 0.7, 0.9]


def test_a_threshold_that_follows_from_costs_is_one_system() -> None:
    base = replace(BASE, controller=BASE.controller.having(auto_stop_threshold=True))
    found = controlled_systems(base, Controllers(("acceptance-head", "heuristic")), 6, 1)
    assert [system.name for system in found[2:]] == ["acceptance-head auto k 6", "heuristic k 6"]
    assert found[2].threshold is None
    options = found[2].describe()["options"]
    assert "stop_threshold" not in options


def test_every_value_for_every_k() -> None:
    found = systems(
        names=("confidence", "acceptance-head", "tree", "oracle"),
        block_sizes=(6, 2),
        swept={"confidence_threshold": (0.25, 0.5), "stop_threshold": (0.6,), "tree_nodes": (5,)},
    )
    names = ["confidence 0.25", "confidence 0.5", "acceptance-head 0.6", "tree 5", "oracle"]
    every = [f"{name} k {k}" for k in (6, 2) for name in names]
    assert list(found) == ["AR", "drafter", *every]
    axes = [(found[name].threshold, found[name].tree_nodes) for name in every[5:]]
    assert axes == [(0.25, None), (0.5, None), (0.6, None), (None, 5), (None, None)]
    assert found["acceptance-head 0.6 k 2"].settings.controller.describe() == {
        "controller": "acceptance-head",
        "min_draft": 0,
        "max_draft": None,
        "stop_threshold": 0.6,
        "auto_stop_threshold": False,
        "acceptance_head": None,
    }
    heads = [found[name].settings.controller.needs_head for name in every[5:]]
    assert heads == [False, False, True, False, False]


def test_a_threshold_that_is_not_looked_at_is_not_swept() -> None:
    found = systems(names=("acceptance-head",), options={"auto_stop_threshold": True})
    assert list(found) == ["AR", "drafter", "acceptance-head auto k 6"]
    assert found["acceptance-head auto k 6"].threshold is None


def test_bounds_are_for_all_but_constant() -> None:
    options = {"min_draft": 2, "max_draft": 5, "refit_threshold": True}
    chosen = {"confidence_threshold": (0.3,), "tree_nodes": (4, 9)}
    found = systems(options=options, swept=chosen)
    assert settings(found["constant k 6"]) == {}
    refit = found["confidence 0.3 refit k 6"]
    assert settings(refit).items() >= {**options, "confidence_threshold": 0.3}.items()
    assert refit.describe() == {
        "strategy": "specdec",
        "k": 6,
        "options": {"controller": "confidence", "confidence_threshold": 0.3, **options},
        "rule": {"beta": 3, "tau": 1.0},
        "beam": 1,
        "engine": "auto",
        "precision": "float32",
        "drafter_precision": None,
        "threads": 1,
    }
    assert found["AR"].describe()["options"] is found["AR"].describe()["rule"] is None
    assert settings(found["tree 4 k 6"])["tree_nodes"] == 4
    assert settings(found["tree 9 k 6"])["tree_nodes"] == 9


def test_what_was_asked_for_twice_is_there_once() -> None:
    found = controlled_systems(BASE, Controllers(("constant", "constant"), (2, 2)), 6, 1)
    assert [system.name for system in found] == ["AR", "drafter", "constant k 2"]


@pytest.mark.parametrize(
    ("choice", "options", "message"),
    [
        ({"names": ("none",)}, {}, "--controller none"),
        ({"constants": (7,)}, {}, "--constant-k 7: .* 1 to 6"),
        ({"constants": (0,)}, {}, "--constant-k 0"),
        ({"block_sizes": (4, 9)}, {}, "--block-size 9"),
        ({"swept": {"confidence_threshold": (1.5,)}}, {}, "--confidence-threshold 1.5"),
        ({"swept": {"stop_threshold": (-0.1,)}}, {}, "--stop-threshold -0.1"),
        (
            {"swept": {"tree_nodes": (2, 9)}},
            {"min_draft": 3},
            "--min-draft 3: is above --tree-nodes 2",
        ),
        ({}, {"max_draft": 7}, "--max-draft 7: is above the block size, 6"),
        ({"block_sizes": (3,)}, {"min_draft": 4}, "--min-draft 4: is above the block size, 3"),
    ],
)
def test_what_cannot_be_is_refused_by_its_flag(
    choice: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        systems(options=options, **choice)


def test_with_sampling_there_is_what_does_not_skew_it() -> None:
    """Neither the drafter alone, nor what weighs a whole draft; who asks for that is told."""
    base = replace(
        BASE,
        rule=SamplingRule(),
        controller=ControllerOptions("heuristic", acceptance_head="head.pt"),
    )
    names = tuple(name for name in CONTROLLERS if name != "oracle")
    found = [system.name for system in controlled_systems(base, Controllers(names, (2,)), 6, 1)]
    assert "drafter" not in found
    assert {name.split()[0] for name in found} == {"AR", *names}
    with pytest.raises(ValueError, match="--controller oracle: looks at drafted tokens"):
        controlled_systems(base, Controllers(("constant", "oracle")), 6, 1)
