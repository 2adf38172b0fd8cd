"""What is drafted and committed of a row depends on that row alone, whatever the rule."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from conftest import make_batch, make_dictionary, make_task, make_verifier
from drafters import make_block, make_causal
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import ScriptedHead

from specdec_plugins.decoding.acceptance import AcceptanceRule
from specdec_plugins.decoding.controllers import NAMES, ControllerOptions
from specdec_plugins.decoding.drafter_only import DrafterOnlyGenerator
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.trace import TraceRecorder

K = 4
DRAFTERS: dict[str, dict[str, Any]] = {
    "block": {"src_embedding_copy": True},
    "causal, features": {"verifier_features": True},
    "causal, all shared": {
        "share_verifier_encoder": True,
        "verifier_features": True,
        "previous_token_head": True,
    },
}
# By its nature cost-aware goes by timings, and by what became of other rows.
CONTROLLERS = sorted({*NAMES} - {"cost-aware"})
HEAD = ScriptedHead(lambda states, probabilities: (states.mean(-1).sigmoid() + probabilities) / 2)


@cache
def verifier() -> Any:
    """Its targets end at many lengths."""
    model = make_verifier(seed=1).requires_grad_(False)
    model.decoder.output_projection.weight[2] *= 4
    return model


@cache
def drafter(name: str) -> Any:
    task = make_task(block_size=K)
    task.verifier = verifier()
    return (make_block if name == "block" else make_causal)(task, **DRAFTERS[name])


def alone(batch: Any, row: int) -> Any:
    """A batch of one row, without the padding."""
    source, length = batch["net_input"]["src_tokens"], batch["net_input"]["src_lengths"][row]
    net_input = {"src_tokens": source[row : row + 1, -length:], "src_lengths": length[None]}
    return {"id": torch.tensor([0]), "net_input": net_input}


def outputs(generator: Any, batch: Any) -> list[list[int]]:
    return [h["tokens"].tolist() for (h,) in generator.generate([], batch)]


def steps(generator: Any, batch: Any) -> list[Any]:
    """Of every row all that its steps drafted, verified and committed."""
    hypotheses = generator.generate([], batch)
    return [[replace(step, milliseconds=0.0) for step in h["trace"]] for (h,) in hypotheses]


@pytest.mark.parametrize("controller", CONTROLLERS)
@settings(max_examples=25)
@given(
    kind=st.sampled_from(sorted(DRAFTERS)),
    lengths=st.lists(st.integers(1, 9), min_size=2, max_size=8),
    seed=st.integers(0, 99),
    k=st.integers(2, K),
    beta=st.sampled_from([1, 3, 5]),
    tau=st.sampled_from([0.5, 2.0, 4.0]),
    redraft_below=st.sampled_from([0.0, 0.2, 0.6, 1.5]),
    max_len_b=st.integers(1, 20),
)
def test_a_batch_is_its_rows(
    controller: str,
    kind: str,
    lengths: list[int],
    seed: int,
    k: int,
    beta: int,
    tau: float,
    redraft_below: float,
    max_len_b: int,
) -> None:
    batch = make_batch(lengths, seed=seed)
    options = ControllerOptions(controller, tree_nodes=2 * k, redraft_below=redraft_below)
    generator = SpeculativeGenerator(
        verifier(),
        drafter(kind),
        make_dictionary(),
        k,
        AcceptanceRule(beta, tau),
        GenerationLimits(max_len_b=max_len_b),
        TraceRecorder(make_dictionary()),
        options,
        HEAD,
    )
    together = steps(generator, batch)
    assert together == [steps(generator, alone(batch, row))[0] for row in range(len(lengths))]


@settings(max_examples=20)
@given(
    kind=st.sampled_from(sorted(DRAFTERS)),
    lengths=st.lists(st.integers(1, 9), min_size=2, max_size=8),
    seed=st.integers(0, 99),
)
def test_a_batch_of_the_drafter_alone_is_its_rows(kind: str, lengths: list[int], seed: int) -> None:
    batch = make_batch(lengths, seed=seed)
    limits = GenerationLimits(max_len_b=20)
    generator = DrafterOnlyGenerator(drafter(kind), make_dictionary(), K, limits, verifier())
    together = outputs(generator, batch)
    assert together == [outputs(generator, alone(batch, row))[0] for row in range(len(lengths))]
