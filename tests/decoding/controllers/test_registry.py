"""A new policy is known everywhere by being registered, without any other change."""

from __future__ import annotations

import importlib
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
from conftest import make_batch
from controlled import K, drafter, verifier
from experiments import make_group, make_run
from scripted import DICTIONARY

from specdec_plugins.decoding.build import build_generator
from specdec_plugins.decoding.controllers import (
    POLICIES,
    ControllerOptions,
    Parts,
    Policy,
    controller_options,
    register_policy,
)
from specdec_plugins.decoding.controllers.constant import Constant
from specdec_plugins.decoding.controllers.policy import DraftingPolicy
from specdec_plugins.decoding.options import declared_options, option
from specdec_plugins.decoding.step_result import StepResult
from specdec_plugins.evaluation import plots
from specdec_plugins.inference import Settings


class Toy(Constant):
    """Drafts in every n-th step."""

    name = "toy"

    def __init__(self, length: int, every: int) -> None:
        super().__init__(length)
        self.every, self.step = every, 0

    def observe(self, result: StepResult) -> list[int]:
        self.step += 1
        return super().observe(result) if self.step % self.every == 0 else [0] * len(result.rows)


@dataclass(frozen=True, kw_only=True)
class ToyPolicy(DraftingPolicy):
    name: ClassVar[str] = "toy"
    help: ClassVar[str] = "now and then"
    real: ClassVar[bool] = False
    rank: ClassVar[int] = 99

    every: int = option(
        2,
        "toy: draft in one of so many steps",
        least=1,
        most=9,
        sweep=(2, 3),
        axis="threshold",
    )

    def build(self, parts: Parts) -> Toy:
        return Toy(parts.bounds.most, self.every)


@pytest.fixture
def toy() -> Iterator[type[Policy]]:
    yield register_policy(ToyPolicy)
    del POLICIES["toy"]


@pytest.fixture
def fresh(toy: type[Policy], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module as a process does in which the policy was there before."""

    def load(name: str) -> ModuleType:
        package, _, last = f"specdec_plugins.{name}".rpartition(".")
        known = importlib.import_module(f"{package}.{last}")
        monkeypatch.setattr(sys.modules[package], last, known)
        monkeypatch.delitem(sys.modules, f"{package}.{last}")
        # Put back by monkeypatch.
        return importlib.import_module(f"{package}.{last}")

    return load


@pytest.mark.usefixtures("toy")
def test_it_decodes() -> None:
    options = ControllerOptions("toy", every=3, max_draft=2)
    assert options.describe() == {"controller": "toy", "min_draft": 0, "max_draft": 2, "every": 3}
    assert controller_options()["every"] in declared_options(ToyPolicy)
    assert "every" in ControllerOptions("constant").idle
    with pytest.raises(ValueError, match="--every 0: must be between 1 and 9"):
        ControllerOptions("toy", every=0)
    batch, found = make_batch([6, 2, 9]), []
    for chosen in (options, ControllerOptions("none")):
        generator = build_generator(verifier(), drafter("causal"), DICTIONARY, options=chosen)
        found.append([h["tokens"].tolist() for (h,) in generator.generate([], batch)])
        calls = generator.statistics.drafter_calls
        assert (0 < calls < generator.statistics.steps) == (chosen is options)
    assert found[0] == found[1]


def test_its_options_are_those_of_the_task(fresh: Any) -> None:
    config = fresh("tasks.decoding_config")
    declared = {field.name: field for field in fields(config.ControllerConfig)}
    assert (declared["every"].type, declared["every"].default) == (int, 2)
    assert "toy (now and then)" in declared["controller"].metadata["help"]
    given = {**vars(config.ControllerConfig()), "controller": "toy", "every": 3}
    assert ControllerOptions.from_config(Namespace(**given)) == ControllerOptions("toy", every=3)


def toys(fresh: Any, **choice: Any) -> list[Any]:
    """The systems of a comparison in which the policy is known."""
    room = fresh("evaluation.controllers")
    base = Settings(data="d", path="drafter.pt", ar_path="verifier.pt")
    systems = room.controlled_systems(base, room.Controllers(**choice), K, 1)
    return [system for system in systems if system.policy == "toy"]


def test_sweeps_have_it(fresh: Any) -> None:
    found = [(one.name, one.threshold, one.real) for one in toys(fresh)]
    assert found == [("toy 2 k 4", 2, False), ("toy 3 k 4", 3, False)]
    chosen = toys(fresh, names=("toy",), swept={"every": (5,)})
    assert [one.name for one in chosen] == ["toy 5 k 4"]


def test_plots_have_it(fresh: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib, of the extra [plot], is not here")
    systems = toys(fresh)
    group = make_group([make_run(system) for system in systems], systems)
    plots.save_figure(plots.draw_pareto(group), tmp_path / "pareto")
    picture = (tmp_path / "pareto.svg").read_text("utf-8")
    assert plots.OTHER.color in picture
    assert "toy (the bound of chains, not a real decoder), by threshold, k 4" in picture


@pytest.mark.usefixtures("toy")
def test_names_are_taken_once() -> None:
    with pytest.raises(ValueError, match="policy toy: is registered twice"):
        register_policy(ToyPolicy)

    @dataclass(frozen=True, kw_only=True)
    class Another(DraftingPolicy):
        name: ClassVar[str] = "toy too"
        help: ClassVar[str] = "with another option of that name"
        every: int = option(3, "another of that name")

    register_policy(Another)
    try:
        with pytest.raises(ValueError, match="--every: is declared twice"):
            controller_options()
    finally:
        del POLICIES["toy too"]


def test_afterwards_it_is_gone() -> None:
    with pytest.raises(ValueError, match="--controller toy: must be one of"):
        ControllerOptions("toy")
