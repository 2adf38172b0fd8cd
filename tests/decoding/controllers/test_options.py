"""Settings that cannot be, and the controllers that settings make."""

from __future__ import annotations

import math
from argparse import Namespace
from typing import Any

import pytest
from conftest import make_batch
from controlled import HEAD, drafter, verifier
from scripted import DICTIONARY, ScriptedHead

from specdec_plugins.decoding.acceptance import (
    AcceptanceRule,
    RelaxedRule,
    SamplingRule,
    StrictRule,
)
from specdec_plugins.decoding.build import build_generator, recommended
from specdec_plugins.decoding.controllers import (
    POLICIES,
    ControllerOptions,
    Needs,
    controller_options,
)
from specdec_plugins.decoding.controllers.base import NoDrafts
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.sizes import PaddedSizes

NAN = math.nan


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"nodes": 5}, "nodes: is none of the options, min_draft, max_draft"),
        ({"controller": "clever"}, "--controller clever: must be one of auto, constant, heuristic"),
        ({"confidence_threshold": 1.5}, "--confidence-threshold 1.5: must be between 0 and 1"),
        ({"confidence_threshold": NAN}, "--confidence-threshold nan"),
        ({"stop_threshold": -0.1}, "--stop-threshold -0.1: must be between 0 and 1"),
        ({"min_draft": 3, "max_draft": 2}, "--min-draft 3: is above --max-draft 2"),
        ({"survival": "tree"}, "--survival: was taken away; .*use --controller acceptance-head"),
        ({"verify_budget": "8"}, "--verify-budget: was taken away; .*use --stop-threshold"),
        ({"min_draft": -1}, "--min-draft -1: must be 0 or more"),
        ({"controller": "cost-aware"}, "--controller cost-aware: was taken away; specdec-tune"),
        ({"controller": "tree", "min_draft": 9}, "--min-draft 9: is above --tree-nodes 8"),
        ({"max_draft": 0}, "--max-draft 0: must be at least 1.*--controller none"),
        ({"controller": "none", "min_draft": 1}, "--controller none drafts nothing"),
        ({"redraft_below": -0.5}, "--redraft-below -0.5: must be 0 or more"),
        ({"redraft_below": NAN}, "--redraft-below nan: must be 0 or more"),
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
        ({"controller": "tree", "max_draft": 5}, "--max-draft 5: is above the block size, 4"),
        ({"controller": "acceptance-head"}, "acceptance-head: there is no acceptance head"),
    ],
)
def test_what_does_not_go_with_the_drafter_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_generator(
            verifier(), drafter("causal"), DICTIONARY, options=ControllerOptions(**given)
        )


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_name_has_its_controller(name: str) -> None:
    least = 0 if name == "none" else 1
    options = ControllerOptions(name, min_draft=least, max_draft=3, tree_nodes=7)
    controller = options.build(4, HEAD)
    assert controller.name == name
    depth = 3 if options.trees else 0
    most = {True: 7, False: 3}[options.trees] if options.drafts else 0
    assert (controller.needs.most, controller.needs.depth) == (most, depth)
    assert isinstance(controller, NoDrafts) == (name == "none") == (not options.drafts)


@pytest.mark.parametrize("by_costs", [False, True])
def test_what_a_threshold_follows_from(by_costs: bool) -> None:
    options = ControllerOptions("acceptance-head", auto_stop_threshold=by_costs)
    assert (options.policy.measures, options.policy.looks_around) == (by_costs, by_costs)
    always = {"min_draft", "max_draft", "acceptance_head", "auto_stop_threshold"}
    read = always if by_costs else {"stop_threshold", *always}
    assert {option.name for option in options.used} == read
    assert options.build(4, HEAD).needs == Needs(4, confidences=True)


def test_a_head_is_asked() -> None:
    """As often as there is a draft, of the drafter's states and confidences."""
    shapes = []

    def says(states: Any, confidences: Any) -> Any:
        shapes.append(tuple(states.shape))
        return confidences

    generator = build_generator(
        verifier(),
        drafter("causal"),
        DICTIONARY,
        options=ControllerOptions("acceptance-head"),
        head=ScriptedHead(says),
    )
    generator.generate([], make_batch([6]))
    assert set(shapes) == {(1, 4, 16)}
    assert len(shapes) == generator.statistics.steps


def test_bounds_of_trees() -> None:
    """The fewest are nodes, which may be more than the block has slots; the most is the depth."""
    options = ControllerOptions("tree", min_draft=6, max_draft=3, tree_nodes=9)
    assert options.build(4).needs == Needs(9, 3)


def test_what_is_said_of_it() -> None:
    """What it does not look at, it is the same without, and does not tell."""
    options = ControllerOptions("confidence", confidence_threshold=0.25, max_draft=None)
    assert options == ControllerOptions("confidence", confidence_threshold=0.25)
    assert len({options, ControllerOptions("confidence", confidence_threshold=0.25)}) == 1
    assert options["confidence_threshold"] == options.swept("threshold") == 0.25
    assert options["tree_nodes"] == 8
    assert options.swept("nodes") is None
    assert options.describe() == {
        "controller": "confidence",
        "min_draft": 0,
        "max_draft": None,
        "confidence_threshold": 0.25,
        "refit_threshold": False,
    }
    assert {*options.describe(), *options.idle} == {"controller", *controller_options()}
    other = options.having("tree", tree_nodes=9)
    assert (other.controller, other["tree_nodes"], other.swept("nodes")) == ("tree", 9, 9)
    assert other["confidence_threshold"] == 0.25


def test_from_a_task_or_a_command_line() -> None:
    given = {
        "min_draft": 1,
        "max_draft": 3,
        "confidence_threshold": 0.25,
        "refit_threshold": True,
        "stop_threshold": 0.5,
        "auto_stop_threshold": True,
        "initial_draft": 2,
        "remember_draft": True,
        "tree_nodes": 9,
        "max_rows": 4,
        "redraft_below": 2.5,
        "acceptance_head": "head.pt",
    }
    gone = {name for name, option in controller_options().items() if option.gone}
    assert {*given} | gone == {*controller_options()}
    config = Namespace(controller="confidence", **given, **dict.fromkeys(gone), other=1)
    found = ControllerOptions.from_config(config)
    assert found == ControllerOptions("confidence", **given)
    assert found.given == given


@pytest.mark.parametrize(
    ("given", "causal", "taken"),
    [
        ({}, True, "tree"),
        ({}, False, "constant"),
        ({"max_draft": 3}, False, "constant"),
        ({"tree_nodes": 5}, False, "tree"),
        ({"redraft_below": 3.0}, False, "tree"),
        ({"max_rows": 4}, False, "constant"),
        ({"max_rows": 4}, True, "tree"),
    ],
)
def test_auto(given: dict[str, Any], causal: bool, taken: str) -> None:
    """The published kind of drafter, which is not causal, has what was published, unless trees are
    asked for."""
    found = ControllerOptions("auto", **given)
    assert found.trees
    resolved = found.resolved(causal)
    assert resolved == ControllerOptions(taken, **given)
    assert resolved.resolved(not causal) is resolved
    kind = "causal" if causal else "block"
    built = build_generator(verifier(), drafter(kind), DICTIONARY, options=found)
    assert built.controller.name == taken


class Padded(EagerEngine):
    """An engine that wants few sizes."""

    sizes = PaddedSizes()


@pytest.mark.parametrize(
    ("rule", "engine", "given", "most"),
    [
        (StrictRule(), EagerEngine(), {}, 2),
        (StrictRule(), Padded(), {}, 1),
        (StrictRule(), Padded(), {"max_rows": 4}, 4),
        (SamplingRule(), Padded(), {}, 1),
        (RelaxedRule(3, 1.0), Padded(), {}, None),
        (RelaxedRule(3, 1.0), Padded(), {"max_rows": 4}, 4),
    ],
)
def test_auto_drafts_for_as_many_rows_as_it_pays(
    rule: AcceptanceRule, engine: EagerEngine, given: dict[str, Any], most: int | None
) -> None:
    """But relaxed output does not depend on the batch, unless that is asked for."""
    found = recommended(ControllerOptions("auto", **given), drafter("causal"), rule, engine)
    assert found == ControllerOptions("tree", max_rows=most)
    assert found.policy.looks_around is (most is not None)
    block = recommended(ControllerOptions("auto"), drafter("block"), rule, engine)
    assert block == ControllerOptions("constant")
    named = ControllerOptions("tree")
    assert recommended(named, drafter("causal"), rule, engine) is named


def test_auto_decodes_a_large_batch_without_drafts() -> None:
    options = ControllerOptions("auto")
    for rows, drafts in ((2, True), (3, False)):
        generator = build_generator(verifier(), drafter("causal"), DICTIONARY, options=options)
        plain = build_generator(verifier(), None, DICTIONARY)
        batch = make_batch([4] * rows)
        found, expected = (
            [row["tokens"].tolist() for (row,) in each.generate([], batch)]
            for each in (generator, plain)
        )
        assert found == expected
        assert (generator.statistics.drafter_calls > 0) is drafts


def test_auto_has_the_bounds_of_what_it_stands_for() -> None:
    with pytest.raises(ValueError, match="--min-draft 9: is above --tree-nodes 8"):
        ControllerOptions("auto", min_draft=9)
    chosen = ControllerOptions("auto", min_draft=3, max_draft=2)
    assert chosen.resolved(True).controller == "tree"
    with pytest.raises(ValueError, match="--min-draft 3: is above --max-draft 2"):
        chosen.resolved(False)
