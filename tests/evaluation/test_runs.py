"""A run's line of JSON, and what is none."""

from __future__ import annotations

import math

import pytest
from sweeps import make_columns, make_run

from specdec_plugins.decoding.step_result import StepTrace
from specdec_plugins.evaluation.runs import Run


def test_json_and_back() -> None:
    """An option may be infinite; figures may not."""
    options = {"rule_options": {"tau": math.inf}, "options": {"redraft_below": math.inf}}
    step = StepTrace(["a"], 1, 1, "b", 0.5, p=[0.5], q=[1.0], p_acc=[0.5])
    columns = make_columns(0.5, output=["schön"], trace=[[step]])
    run = make_run(by_sentence=columns, **options)
    assert "\n" not in run.to_json()
    assert Run.from_json(run.to_json().encode()) == run
    for number in (math.inf, math.nan, -1.0):
        for changes in ({"seconds": number}, {"by_sentence": make_columns(number)}):
            with pytest.raises(ValueError, match="a number in it cannot be"):
                Run.from_json(make_run(**changes).to_json().encode())


COLUMNS = make_run().to_json().replace('"seconds": [', '"hours": [')
TYPES = make_run().to_json().replace('"options": {', '"options": {"list": [], ')


@pytest.mark.parametrize(
    "line", ["", "[]", "{}", '{"system": 1}', '{"by_sentence": {}}', "[" * 9999, COLUMNS, TYPES]
)
def test_what_is_no_run(line: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  (the reason is the JSON library's)
        Run.from_json(line.encode())
