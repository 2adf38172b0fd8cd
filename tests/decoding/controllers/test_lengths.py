"""Lengths that no draft can have: the error names the controller, its method, and what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import make_batch
from helpers.decoding.controlled import K, build, make_generator, verifier
from helpers.decoding.recorded import recorded
from helpers.decoding.strict import assert_same_words, beam1

from specdec_plugins.decoding.controllers.base import Controller
from specdec_plugins.decoding.controllers.simple import Constant
from specdec_plugins.decoding.drafts import Draft
from specdec_plugins.decoding.step_result import StepResult

Returned = Callable[[list[int]], Any]
"""A function of lengths that could be, to something else."""


class Faulty(Controller):
    """Whole blocks, but for what one of its methods returns."""

    name = "faulty"

    def __init__(self, method: str, returned: Returned) -> None:
        super().__init__()
        self.block_size = K
        self._method, self._returned = method, returned

    def _lengths(self, method: str, lengths: list[int]) -> Any:
        return self._returned(lengths) if self._method == method else lengths

    def start(self, rows: int) -> list[int]:
        return self._lengths("start", super().start(rows))

    def verify_lengths(self, draft: Draft) -> torch.Tensor | None:
        if self._method != "verify_lengths":
            return None
        return self._lengths("verify_lengths", draft.drafted)

    def observe(self, result: StepResult) -> list[int]:
        return self._lengths("observe", super().observe(result))


LISTS: list[tuple[Returned, str]] = [
    (lambda lengths: lengths[1:], "returned 2 lengths; must be 3, one for each row"),
    (lambda lengths: [*lengths, 1], "returned 4 lengths; must be 3, one for each row"),
    (lambda lengths: [0.5] * 3, r"returned \[0.5, 0.5, 0.5\]; must be whole numbers"),
    (lambda lengths: None, "returned None; must be whole numbers"),
    (lambda lengths: [1, 2, -1], "returned -1 for row 2; must be at least 0"),
    (lambda lengths: [1, K + 1, 2], "returned 5 for row 1; must be at most 4"),
]
TENSORS: list[tuple[Returned, str]] = [
    (lambda lengths: torch.tensor(lengths[1:]), r"torch.int64 of shape \(2,\); .* \(3,\)"),
    (lambda lengths: torch.tensor([lengths]), r"torch.int64 of shape \(1, 3\); .* \(3,\)"),
    (lambda lengths: torch.ones(3), r"torch.float32 of shape \(3,\); must be whole numbers"),
    (lambda lengths: torch.ones(3) > 0, r"torch.bool of shape \(3,\); must be whole numbers"),
    (lambda lengths: torch.tensor([1, 2, -1]), "returned -1 for row 2; must be at least 0"),
]


@pytest.mark.parametrize(
    ("method", "returned", "fault"),
    [
        *(("start", *case) for case in LISTS),
        *(("observe", *case) for case in LISTS),
        *(("verify_lengths", *case) for case in TENSORS),
    ],
)
def test_a_controllers_fault_is_named(method: str, returned: Returned, fault: str) -> None:
    generator = make_generator("causal", Faulty(method, returned), 12)
    with pytest.raises(ValueError, match=f"--controller faulty: Faulty.{method} .*{fault}") as told:
        generator.generate([], make_batch([3, 5, 4]))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(("returned", "fault"), LISTS)
def test_so_it_is_where_steps_are_recorded(
    returned: Returned, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Faulty, "steady", True)
    generator = build(recorded(), "causal", Constant())
    generator.controller = Faulty("start", returned)
    with pytest.raises(ValueError, match=f"Faulty.start .*{fault}"):
        generator.generate([], make_batch([3, 5, 4]))


class Ending(Controller):
    """Asks for what cannot be of rows that have ended, and for whole blocks of the others."""

    name = "ending"

    def observe(self, result: StepResult) -> list[int]:
        return [-1 if ended else self.block_size for ended in result.finished]


def test_lengths_of_rows_that_have_ended_are_not_used() -> None:
    batch = make_batch([6, 2, 9, 1, 4, 7, 3, 5])
    generator = make_generator("causal", Ending().ready(K), 12)
    found = [hypothesis for (hypothesis,) in generator.generate([], batch)]
    assert_same_words(found, beam1(verifier(), batch, generator.limits), batch, verifier(), 0)
    assert len({hypothesis["steps"] for hypothesis in found}) > 1
