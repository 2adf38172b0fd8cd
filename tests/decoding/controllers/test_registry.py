"""A controller is known to every door by being registered, without any other change."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields

import pytest

from specdec_plugins.decoding.controllers.base import (
    CONTROLLERS,
    Controller,
    register,
)
from specdec_plugins.decoding.options import option
from specdec_plugins.decoding.step_result import StepResult


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


@pytest.fixture
def toy() -> Iterator[None]:
    register(Toy)
    yield
    del CONTROLLERS["toy"]


@pytest.mark.usefixtures("toy")
def test_its_options_are_those_of_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "specdec_plugins.tasks.specdec_config"
    known = importlib.import_module(name)
    monkeypatch.setattr(sys.modules["specdec_plugins.tasks"], "specdec_config", known)
    monkeypatch.delitem(sys.modules, name)
    config = importlib.import_module(name)  # as in a process that knew it from the beginning
    declared = {field.name: field for field in fields(config.DecodingConfig)}
    assert (declared["every"].type, declared["every"].default) == (int, 2)
    assert "toy (now and then)" in declared["controller"].metadata["help"]
