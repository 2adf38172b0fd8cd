"""The head itself: shapes, parameters, features, fingerprint."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
import torch
from conftest import make_task
from helpers.models.drafters import make_causal

from specdec_plugins.decoding.acceptance import RelaxedRule, StrictRule
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.models.acceptance_head import (
    AcceptanceHead,
    AcceptanceHeadConfig,
    AcceptanceHeadModel,
    HeadSettings,
    fingerprint,
)


def make_head(**changes: object) -> AcceptanceHead:
    """A random head."""
    settings: dict[str, Any] = {
        "channels": 16,
        "layers": 3,
        "block_size": 4,
        "rule": StrictRule().values,
        "drafter": "0" * 64,
    }
    head = AcceptanceHead(HeadSettings(**{**settings, **changes}))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(std=0.3, generator=generator)
    return head


def inputs(slots: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shape = (5, slots)
    return torch.randn(*shape, 16, generator=generator), torch.rand(shape, generator=generator)


@pytest.mark.parametrize("layers", [0, 2])
def test_a_head_is_what_its_definition_says(layers: int) -> None:
    head = make_head(layers=layers, temperature=1.5, bias=-0.25)
    states, confidences = inputs()
    features = torch.stack([confidences.log(), (1 - confidences).log()], -1)
    x = states + head.slots + features @ head.confidence.weight.T
    for block in head.blocks:
        y = x @ block.linear.weight.T + block.linear.bias
        x = x + y * torch.sigmoid(y)
    logits = (x @ head.out.weight.T + head.out.bias)[..., 0]
    torch.testing.assert_close(head.logits(states, confidences), logits)
    whole = head(states, confidences)
    torch.testing.assert_close(whole, (logits / 1.5 - 0.25).sigmoid())
    torch.testing.assert_close(head(states[:, :2], confidences[:, :2]), whole[:, :2])
    # States of another precision, and sure tokens.
    confidences[0], confidences[1] = 0.0, 1.0
    found = head(states.bfloat16(), confidences)
    assert found.dtype == torch.float32
    assert found.isfinite().all()


def test_weights_of_a_head_for_something_else_are_refused() -> None:
    saved = make_head().state_dict()
    with pytest.raises(ValueError, match="trained with beta 1, not 3"):
        make_head(rule=RelaxedRule(3, 1.0).values).load_state_dict(saved)


def test_a_fingerprint_is_that_of_half_precision() -> None:
    """Exported checkpoints hold float16, training ones float32."""
    drafter = make_causal().float()
    given = fingerprint(drafter)
    assert len(given) == 64
    assert fingerprint(drafter.half().float()) == given


def build(task: Namespace, **settings: Any) -> AcceptanceHeadModel:
    return AcceptanceHeadModel.build_model(
        AcceptanceHeadConfig(**{"drafter": "drafter.pt", **settings}), task
    )


@pytest.fixture
def task() -> Namespace:
    task = make_task(block_size=None)
    task.rule = RelaxedRule(3, 1.5)
    task.limits = GenerationLimits(temperature=0.5, repetition_penalty=1.25)
    drafter = make_causal()  # for blocks of 4
    task.load_drafter = lambda path: drafter
    return task


def test_only_the_head_is_trained_and_saved(task: Namespace) -> None:
    model = build(task, head_layers=1)
    names = {name for name, _ in model.named_parameters()}
    assert names == {
        "head.slots",
        "head.confidence.weight",
        "head.blocks.0.linear.weight",
        "head.blocks.0.linear.bias",
        "head.out.weight",
        "head.out.bias",
    }
    assert set(model.state_dict()) == names | {"head._extra_state"}


def test_settings_are_those_of_task_and_drafter(task: Namespace) -> None:
    settings = build(task).head.settings
    assert (settings.rule, settings.block_size) == ({"beta": 3, "tau": 1.5}, 4)
    assert settings.drafter == fingerprint(task.load_drafter("drafter.pt"))
    assert (settings.channels, settings.layers) == (16, 0)
    assert (settings.rule_temperature, settings.repetition_penalty) == (0.5, 1.25)
    assert build(task, head_layers=3).head.settings.layers == 3
    task.cfg.block_size = 2
    assert build(task).head.settings.block_size == 2
