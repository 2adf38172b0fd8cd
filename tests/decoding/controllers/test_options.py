"""Settings that cannot be, and the controllers that settings make."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
from conftest import make_dictionary, make_task, make_verifier
from drafters import make_causal
from scripted import ScriptedHead

from specdec_plugins.decoding.controllers import NAMES, ControllerOptions, build_controller
from specdec_plugins.decoding.generator import SpeculativeGenerator


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"controller": "clever"}, "--controller clever: must be one of constant, heuristic"),
        ({"confidence_threshold": 1.5}, "--confidence-threshold 1.5: must be between 0 and 1"),
        ({"confidence_threshold": float("nan")}, "--confidence-threshold nan"),
        ({"stop_threshold": -0.1}, "--stop-threshold -0.1: must be between 0 and 1"),
        ({"min_draft": 3, "max_draft": 2}, "--min-draft 3: is above --max-draft 2"),
        ({"survival": "hope"}, "--survival hope: must be one of tree, averages, confidence"),
        ({"min_draft": -1}, "--min-draft -1: must be 0 or more"),
        ({"controller": "cost-aware", "min_draft": 17}, "--min-draft 17: is above --tree-nodes 16"),
        ({"max_draft": 0}, "--max-draft 0: must be at least 1.*--controller none"),
        ({"controller": "none", "min_draft": 1}, "--controller none drafts nothing"),
        ({"redraft_below": -0.5}, "--redraft-below -0.5: must be 0 or more"),
        ({"redraft_below": float("nan")}, "--redraft-below nan: must be 0 or more"),
        ({"tree_nodes": 0}, "--tree-nodes 0: must be between 1 and 1024"),
        ({"tree_nodes": 1025}, "--tree-nodes 1025: must be between 1 and 1024"),
        ({"controller": "tree", "min_draft": 3, "tree_nodes": 2}, "--min-draft 3: is above --tree"),
    ],
)
def test_what_cannot_be_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ControllerOptions(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_draft": 5}, "--max-draft 5: is above the block size, 4"),
        ({"min_draft": 5}, "--min-draft 5: is above the block size, 4"),
        ({"controller": "acceptance-head"}, "acceptance-head: there is no acceptance head"),
        ({"controller": "cost-aware", "survival": "head"}, "--survival head: there is no"),
    ],
)
def test_what_does_not_go_with_the_drafter_is_named(given: dict[str, Any], message: str) -> None:
    task = make_task(block_size=4)
    task.verifier = make_verifier()
    with pytest.raises(ValueError, match=message):
        SpeculativeGenerator(
            task.verifier,
            make_causal(task),
            make_dictionary(),
            controller=ControllerOptions(**given),
        )


@pytest.mark.parametrize("name", sorted({*NAMES} - {"none"}))
def test_every_name_has_its_class(name: str) -> None:
    survival = "averages" if name == "cost-aware" else None
    options = ControllerOptions(name, 1, 3, tree_nodes=7, survival=survival)
    controller = build_controller(options, 4, head=ScriptedHead(lambda s, p: p))
    assert type(controller).__doc__.startswith(f"``{name}``")  # type: ignore[union-attr]
    assert (controller.length, controller.depth) == ((7, 3) if name == "tree" else (3, 0))
    assert controller.bounds.least == 1


@pytest.mark.parametrize(
    ("given", "reads", "needs"),
    [
        ({}, False, False),
        ({"acceptance_head": "head.pt"}, True, False),
        ({"acceptance_head": "head.pt", "survival": "averages"}, False, False),
        ({"acceptance_head": "head.pt", "survival": "confidence"}, False, False),
        ({"survival": "head"}, True, True),
    ],
)
def test_what_survival_is_told_by(given: dict[str, Any], reads: bool, needs: bool) -> None:
    options = ControllerOptions("cost-aware", **given)
    assert (options.reads_head, options.needs_head) == (reads, needs)
    assert ("acceptance_head" in options.idle) == (not reads)
    assert ("tree_nodes" in options.idle) == (not options.drafts_trees)
    controller = build_controller(options, 4, (lambda s, p: p) if reads else None)
    assert controller.cuts == (reads or given.get("survival") == "confidence")
    trees = not reads and given.get("survival", "tree") == "tree"
    assert (controller.bounds.most, controller.depth) == ((16, 4) if trees else (4, 0))


def test_bounds_of_trees() -> None:
    """The fewest are nodes, which may be more than the block has slots; the most is the depth."""
    options = ControllerOptions("cost-aware", min_draft=6, max_draft=3, tree_nodes=9)
    controller = build_controller(options, 4)
    assert (controller.bounds.least, controller.bounds.most, controller.depth) == (6, 9, 3)
    with pytest.raises(ValueError, match="--max-draft 5: is above the block size, 4"):
        build_controller(ControllerOptions("tree", max_draft=5), 4)


def test_from_a_task_or_a_command_line() -> None:
    names = ("controller", "min_draft", "max_draft", "confidence_threshold")
    names += ("refit_threshold", "stop_threshold", "tree_nodes", "redraft_below", "survival")
    names += ("acceptance_head", "cost_profile")
    values = ("confidence", 1, 3, 0.25, True, 0.5, 9, 2.5, "confidence")
    values += ("head.pt", "costs.json")
    given = dict(zip(names, values, strict=True))
    assert vars(ControllerOptions.from_config(Namespace(**given, other=1))) == given
