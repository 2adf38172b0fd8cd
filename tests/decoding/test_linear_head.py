"""A head without blocks as it is read on the CPU: as the tensors' definition says."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from models.test_acceptance_head import inputs, make_head

from specdec_plugins.decoding.linear_head import LinearHead


@given(
    slot_feature=st.booleans(),
    confidence_feature=st.booleans(),
    temperature=st.floats(0.2, 5.0),
    bias=st.floats(-3.0, 3.0),
    slots=st.integers(1, 4),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
)
def test_the_same_probabilities(
    slot_feature: bool,
    confidence_feature: bool,
    temperature: float,
    bias: float,
    slots: int,
    dtype: torch.dtype,
) -> None:
    head = make_head(
        layers=0,
        slot_feature=slot_feature,
        confidence_feature=confidence_feature,
        temperature=temperature,
        bias=bias,
    )
    states, confidences = inputs(slots)
    confidences[0], confidences[1] = 0.0, 1.0
    states = states.to(dtype)
    linear = LinearHead(head)
    found = linear(states, confidences)
    assert found.dtype == torch.float32
    expected = head(states, confidences)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    survival = expected.cumprod(-1)
    for least in (0.0, *((survival[:, :-1] + survival[:, 1:]) / 2).flatten().tolist(), 1.1):
        if (survival - least).abs().amin() > 1e-5:
            survivors = linear.survivors(states, confidences, least)
            assert torch.equal(survivors, (survival >= least).sum(-1))
            assert torch.equal(survivors, head.survivors(states, confidences, least))


def test_what_it_is_given_stays_as_it_was() -> None:
    states, confidences = inputs()
    before = states.clone(), confidences.clone()
    head = LinearHead(make_head(layers=0))
    head(states, confidences)
    head.survivors(states, confidences, 0.5)
    torch.testing.assert_close((states, confidences), before, rtol=0, atol=0)


def test_what_is_no_number_does_not_survive() -> None:
    head, (states, confidences) = make_head(layers=0), inputs()
    states[:, 1] = torch.nan
    survivors = LinearHead(head).survivors(states, confidences, 0.0)
    assert survivors.tolist() == [1] * 5
    assert torch.equal(survivors, head.survivors(states, confidences, 0.0))


def test_more_slots_than_it_knows_are_an_error() -> None:
    head = LinearHead(make_head(layers=0))
    with pytest.raises(AssertionError):
        head.survivors(*inputs(5), 0.5)


def test_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="3 residual blocks"):
        LinearHead(make_head())
