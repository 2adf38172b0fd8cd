"""Options that cannot be, and the controllers that options make."""

from __future__ import annotations

from typing import Any

import pytest
from controlled import drafter, verifier
from scripted import DICTIONARY

from specdec_plugins.decoding.acceptance import (
    AcceptanceRule,
    RelaxedRule,
    SamplingRule,
    StrictRule,
)
from specdec_plugins.decoding.build import build_generator, recommended
from specdec_plugins.decoding.controllers.base import controller_of
from specdec_plugins.decoding.controllers.simple import (
    AcceptanceHeadController,
    Auto,
    Constant,
    Tree,
)
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.sizes import PaddedSizes


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ({"controller": "clever"}, "--controller clever"),
        ({"controller": "confidence", "confidence_threshold": 1.5}, "--confidence-threshold 1.5"),
        ({"controller": "confidence", "confidence_threshold": float("nan")}, "nan"),
        ({"controller": "acceptance-head", "stop_threshold": -0.1}, "--stop-threshold -0.1"),
        ({"controller": "constant", "max_draft": 0}, "--max-draft 0"),
        ({"controller": "tree", "tree_nodes": 1025}, "--tree-nodes 1025"),
        ({"controller": "auto", "redraft_below": -0.5}, "--redraft-below -0.5"),
    ],
)
def test_what_cannot_be_is_named(given: dict[str, Any], flag: str) -> None:
    with pytest.raises(ValueError, match=flag):
        controller_of(given)


@pytest.mark.parametrize(
    "options",
    [
        Constant(max_draft=5),
        Constant(min_draft=5),
        Constant(min_draft=3, max_draft=2),
        AcceptanceHeadController(),
    ],
)
def test_what_does_not_fit_the_drafter_is_refused(options: Any) -> None:
    with pytest.raises(ValueError, match=r"block size, 4|no acceptance head"):
        build_generator(verifier(), drafter("causal"), DICTIONARY, controller=options)


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
    kind = "causal" if causal else "block"
    found = recommended(Auto(**given), drafter(kind), StrictRule(), EagerEngine())
    assert found.name == taken
    if taken == "tree":
        assert found == Tree(**{"max_rows": 2, **given})
    built = build_generator(verifier(), drafter(kind), DICTIONARY, controller=Auto(**given))
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
    found = recommended(Auto(**given), drafter("causal"), rule, engine)
    assert found == Tree(max_rows=most)
    assert found.depends_on_batch is (most is not None)
    block = recommended(Auto(), drafter("block"), rule, engine)
    assert block == Constant()
    named = Tree()
    assert recommended(named, drafter("causal"), rule, engine) is named
