"""A run's line of JSON, and what is none."""

from __future__ import annotations

import math

import pytest
from experiments import PEERS, make_columns, make_run

from specdec_plugins.evaluation.runs import Run


def test_json_and_back() -> None:
    columns = make_columns(0.5, output=["schön"])
    for run in (make_run(by_sentence=columns), make_run(PEERS[0])):
        assert b"\n" not in run.to_json()
        assert Run.from_json(run.to_json()) == run


@pytest.mark.parametrize("number", [math.inf, math.nan, -1.0, 1e300])
def test_figures_that_cannot_be(number: float) -> None:
    for changes in ({"seconds": number}, {"by_sentence": make_columns(number)}):
        with pytest.raises(ValueError, match="float"):
            Run.from_json(make_run(**changes).to_json())


GOOD = make_run().to_json()
COLUMNS = GOOD.replace(b'"seconds":[', b'"hours":[')
LENGTHS = GOOD.replace(b'"steps":[2,2]', b'"steps":[2]')
TYPES = GOOD.replace(b'"sentences":2', b'"sentences":"2"')


@pytest.mark.parametrize(
    "line", [b"", b"[]", b"{}", b'{"system": 1}', b"[" * 9999, COLUMNS, LENGTHS, TYPES]
)
def test_what_is_no_run(line: bytes) -> None:
    assert line != GOOD
    with pytest.raises(ValueError):  # noqa: PT011  (the reason is the JSON library's)
        Run.from_json(line)
