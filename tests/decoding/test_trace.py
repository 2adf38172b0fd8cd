"""A trace tells what was committed and how probable it was; recording it changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import accumulate
from operator import mul

import pytest
import torch
from conftest import make_batch, make_dictionary, thinned
from helpers.decoding.controlled import HEAD, K, verifier
from helpers.decoding.controlled import make_generator as make_controlled

from specdec_plugins.decoding.acceptance import SamplingRule, StrictRule
from specdec_plugins.decoding.controllers.simple import (
    AcceptanceHeadController,
    Confidence,
    Constant,
    Tree,
)
from specdec_plugins.decoding.step_result import StepTrace

DICTIONARY = make_dictionary()


TRACED = {
    "constant": Constant(),
    "confidence": Confidence(confidence_threshold=0.3),
    "acceptance-head": AcceptanceHeadController(stop_threshold=0.6),
    "tree": Tree(tree_nodes=9),
}


LENGTHS = [7, 3, 5, 9]


def traced_steps(name: str, kind: str, sampled: bool) -> Iterator[tuple[int, list[int], StepTrace]]:
    """Row, what was committed before, and the step, of a real pair."""
    rule = SamplingRule() if sampled else StrictRule()
    generator = make_controlled(kind, TRACED[name].ready(K, HEAD), 12, rule=rule)
    torch.manual_seed(0)
    for row, (found,) in enumerate(generator.generate([], make_batch(LENGTHS, seed=0))):
        tokens, at = found["tokens"].tolist(), 0
        for step in found["trace"]:
            yield row, tokens[:at], step
            at += step.committed


@cache
@torch.no_grad()
def whole_pass(row: int, tokens: tuple[int, ...]) -> torch.Tensor:
    """``(tokens + 1, vocabulary)`` the verifier's probabilities of what comes after a beginning of
    any length, for a row."""
    source = make_batch(LENGTHS, seed=0)["net_input"]["src_tokens"][row, -LENGTHS[row] :]
    logits, _ = verifier()(source[None], torch.tensor([len(source)]), torch.tensor([[2, *tokens]]))
    lprobs = logits[0].log_softmax(-1)
    lprobs[:, DICTIONARY.pad()] = -torch.inf
    lprobs[0, DICTIONARY.eos()] = -torch.inf
    return lprobs


def way_before(step: StepTrace, place: int) -> list[int]:
    """The drafted tokens that lead to one of them."""
    before = place - 1 if step.parents is None else step.parents[place]
    if before < 0:
        return []
    return [*way_before(step, before), DICTIONARY.index(step.drafted[before])]


ALL = thinned(name=TRACED, kind=["block", "causal, all shared"], sampled=[0, 1])


@ALL
def test_p_is_what_the_verifier_says_in_a_whole_pass(name: str, kind: str, sampled: bool) -> None:
    checked = 0
    for row, told, step in traced_steps(name, kind, sampled):
        judged = step.verify_length
        assert [value is None for value in step.p] == [
            place >= judged for place in range(len(step.drafted))
        ]
        for place, symbol in enumerate(step.drafted[:judged]):
            way = way_before(step, place)
            # What comes after an EOS, or where one is forced, is of no use.
            if len(told) + len(way) < 12 and DICTIONARY.eos() not in way:
                lprobs = whole_pass(row, (*told, *way))[-1]
                p = lprobs.softmax(-1) if sampled else lprobs.exp()
                assert step.p[place] == pytest.approx(float(p[DICTIONARY.index(symbol)]), rel=1e-4)
                checked += 1
    assert checked > 15


@ALL
def test_q_is_what_controllers_go_by(name: str, kind: str, sampled: bool) -> None:
    """Verify lengths follow from it; with sampling, the first token that a controller would cut is
    verified too."""
    lengths = set()
    for *_, step in traced_steps(name, kind, sampled):
        assert len(step.q) == len(step.drafted)
        if name == "confidence":
            kept = [*(q >= 0.3 for q in step.q), False].index(False)
            assert step.verify_length == min(kept + sampled, len(step.drafted))
            lengths.add(step.verify_length)
    assert len(lengths) != 1


@ALL
def test_p_acc_is_what_the_head_says(name: str, kind: str, sampled: bool) -> None:
    """And the controller verifies by it, as by q above."""
    lengths = set()
    for *_, step in traced_steps(name, kind, sampled):
        if name != "acceptance-head":
            assert step.p_acc is None
            continue
        assert len(step.p_acc) == len(step.drafted)
        survival = accumulate(step.p_acc, mul)
        wanted = sum(chance >= 1 - 0.6 for chance in survival)
        assert step.verify_length == min(wanted + sampled, len(step.drafted))
        lengths.add(step.verify_length)
    assert len(lengths) != 1
