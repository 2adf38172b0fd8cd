"""Options that cannot be, the controllers that options make, and options that a new class adds."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass, fields
from typing import Any

import pytest
from helpers.decoding.controlled import drafter, verifier
from helpers.decoding.scripted import DICTIONARY
from helpers.decoding.whole_cache import WHOLE_CACHE

from specdec_plugins.decoding.acceptance import (
    AcceptanceRule,
    RelaxedRule,
    SamplingRule,
    StrictRule,
)
from specdec_plugins.decoding.build import build_generator, recommended
from specdec_plugins.decoding.controllers.base import (
    CONTROLLERS,
    Controller,
    controller_of,
    register,
)
from specdec_plugins.decoding.controllers.simple import (
    Auto,
    Constant,
    Tree,
)
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.options import option
from specdec_plugins.decoding.step_result import StepResult
from specdec_plugins.engines.eager import EagerEngine


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ({"controller": "clever"}, "--controller clever"),
        ({"controller": "confidence", "confidence_threshold": 1.5}, "--confidence-threshold 1.5"),
        ({"controller": "auto", "redraft_below": -0.5}, "--redraft-below -0.5"),
        ({"temperature": 0.0}, "--temperature 0.0: must be at least 1e-06"),
        ({"unkpen": float("nan")}, "--unkpen nan: must be a number"),
        ({"controller": "acceptance-head"}, "no acceptance head"),
    ],
)
def test_what_cannot_be_is_named(given: dict[str, Any], flag: str) -> None:
    with pytest.raises(ValueError, match=flag):
        controller_of(given).ready(4) if "controller" in given else GenerationLimits(**given)


@pytest.mark.parametrize(
    ("given", "causal", "taken"),
    [
        ({}, True, "tree"),
        ({}, False, "constant"),
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


@pytest.mark.parametrize(
    ("rule", "engine", "given", "most"),
    [
        (StrictRule(), EagerEngine(), {}, 2),
        (StrictRule(), WHOLE_CACHE, {}, 1),
        (StrictRule(), WHOLE_CACHE, {"max_rows": 4}, 4),
        (SamplingRule(), WHOLE_CACHE, {}, 1),
        (RelaxedRule(3, 1.0), WHOLE_CACHE, {}, None),
        (RelaxedRule(3, 1.0), WHOLE_CACHE, {"max_rows": 4}, 4),
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


@dataclass(kw_only=True)
class Toy(Controller):
    """Drafts in every n-th step."""

    name = "toy"
    help = "now and then"

    every: int = option(2, "toy: draft in one of so many steps", minimum=1, maximum=9)

    def start(self, rows: int) -> list[int]:
        self._step = 0
        return super().start(rows)

    def observe(self, result: StepResult) -> list[int]:
        self._step += 1
        return super().observe(result) if self._step % self.every == 0 else [0] * len(result.rows)


def test_options_of_a_new_class_are_those_of_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONTROLLERS, "toy", Toy)
    register(Toy)
    name = "specdec_plugins.tasks.specdec_config"
    known = importlib.import_module(name)
    monkeypatch.setattr(sys.modules["specdec_plugins.tasks"], "specdec_config", known)
    monkeypatch.delitem(sys.modules, name)
    config = importlib.import_module(name)  # as in a process that knew it from the beginning
    declared = {field.name: field for field in fields(config.DecodingConfig)}
    assert (declared["every"].type, declared["every"].default) == (int, 2)
    assert "toy (now and then)" in declared["controller"].metadata["help"]
