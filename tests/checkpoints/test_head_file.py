"""The head's file: what is written is what is read, and what does not fit is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.models.drafters import make_causal
from models.test_acceptance_head import inputs, make_head

from specdec_plugins.checkpoints.head_file import find_head, load_head, save_head
from specdec_plugins.decoding.acceptance import RelaxedRule, SamplingRule, Scoring
from specdec_plugins.files.errors import CheckpointError
from specdec_plugins.models.acceptance_head import fingerprint

DRAFTER = make_causal().float()
RULE = RelaxedRule(3, 1.0)
RELAXED = Scoring(RULE).values
SETTINGS: dict[str, Any] = {
    "rule": RULE.values,
    "temperature": 1.25,
    "bias": 0.5,
    "drafter": fingerprint(DRAFTER),
}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "acceptance_head.pt"
    save_head(path, make_head(**SETTINGS))
    return path


def test_a_head_is_read_as_it_was_written(saved: Path) -> None:
    head = load_head(saved, DRAFTER, RELAXED, 4)
    expected = make_head(**SETTINGS)
    assert head.settings == expected.settings
    states, confidences = inputs()
    torch.testing.assert_close(
        head(states, confidences), expected.half().float()(states, confidences)
    )
    assert not head.training
    assert not any(p.requires_grad for p in head.parameters())


def test_the_head_beside_a_drafter(saved: Path) -> None:
    for rule in ("relaxed", "strict"):
        assert find_head(saved.parent / "drafter.pt", rule) == saved
        assert find_head(saved.parent / "elsewhere" / "drafter.pt", rule) is None
    relaxed = saved.rename(saved.with_name("acceptance_head.relaxed.pt"))
    assert find_head(saved.parent / "drafter.pt", "relaxed") == relaxed
    assert find_head(saved.parent / "drafter.pt", "strict") is None


def test_heads_of_before_sampling_are_read(saved: Path) -> None:
    state = torch.load(saved, weights_only=True)
    assert (state["acceptance_head"]["beta"], state["acceptance_head"]["tau"]) == (3, 1.0)
    del state["acceptance_head"]["rule_temperature"]
    torch.save(state, saved)
    assert load_head(saved, DRAFTER, RELAXED).settings == make_head(**SETTINGS).settings


@pytest.mark.parametrize(
    "scoring",
    [Scoring(SamplingRule(sampling_topk=3), 0.5), Scoring(repetition_penalty=1.25)],
)
def test_a_head_is_for_its_scoring(scoring: Scoring, tmp_path: Path) -> None:
    path = tmp_path / "head.pt"
    values = {"rule_temperature": scoring.temperature, "rule": scoring.rule.values}
    values |= {"repetition_penalty": scoring.repetition_penalty}
    save_head(path, make_head(**values, drafter=fingerprint(DRAFTER)))
    assert load_head(path, DRAFTER, scoring.values).settings.rule == scoring.rule.values
    for other in (Scoring(), Scoring(RULE), Scoring(scoring.rule, repetition_penalty=2.0)):
        with pytest.raises(CheckpointError):
            load_head(path, DRAFTER, other.values)


@pytest.mark.parametrize(
    "changes",
    [
        {"drafter": make_causal(seed=1).float()},
        {"scoring": Scoring(RelaxedRule(3, 2.0)).values},
        {"block_size": 5},
    ],
)
def test_other_uses_are_refused(saved: Path, changes: dict[str, object]) -> None:
    with pytest.raises(CheckpointError):
        load_head(saved, **{"drafter": DRAFTER, "scoring": RELAXED, "block_size": 4, **changes})
