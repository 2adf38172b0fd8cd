"""Builders refuse blocks that were not trained, the drafter alone repeats the training forward, and
made-up sentences leave nothing behind but an engine that has met common sizes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from conftest import examples, make_batch, make_verifier, thinned
from helpers.decoding.controlled import build
from helpers.decoding.scripted import DICTIONARY
from helpers.decoding.strict import one_row
from helpers.decoding.whole_cache import WHOLE_CACHE
from helpers.models.drafters import batch_of, make_block, make_causal, slot_logits
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.decoding.batch import Prefixes
from specdec_plugins.decoding.build import build_generator, warm_up
from specdec_plugins.decoding.controllers.base import CONTROLLERS
from specdec_plugins.decoding.drafter_alone import DrafterAlone
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.steps.drafter import CachedDrafter
from specdec_plugins.models.drafter import Drafter

PAD, EOS, UNK = DICTIONARY.pad(), DICTIONARY.eos(), DICTIONARY.unk()
VERIFIER = make_verifier()
BUILDERS = {
    "block": lambda: make_block(src_embedding_copy=False, decoder_learned_pos=True),
    "block, soft copy": lambda: make_block(decoder_learned_pos=True, seed=1),
    "causal": lambda: make_causal(seed=2),
    "causal, shared encoder": lambda: make_causal(share_verifier_encoder=True, seed=3),
    "causal, features": lambda: make_causal(verifier_features=True, seed=4),
}


def make_drafter(kind: str) -> Drafter:
    drafter = BUILDERS[kind]()
    drafter.attach_verifier(VERIFIER)
    return drafter


def alone(drafter: Drafter, k: int | None = None, **limits: Any) -> DrafterAlone:
    given = GenerationLimits(**limits)
    return DrafterAlone(drafter, drafter.verifier, DICTIONARY, k, given)


def draft_by_training_forward(
    drafter: Drafter, source: torch.Tensor, k: int, limits: GenerationLimits
) -> tuple[list[int], list[float]]:
    """One row, every block from scratch by the forward that training uses."""
    tokens: list[int] = []
    scores: list[float] = []
    lengths = torch.tensor([len(source)])
    most = int(limits.max_len_a * len(source)) + limits.max_len_b
    while True:
        filled = torch.tensor([tokens + [5] * drafter.block_size])
        cut = torch.tensor([[len(tokens)]])
        logits = slot_logits(drafter(batch_of(source[None], lengths, filled, cut)))[0, 0, :k]
        lprobs = logits.log_softmax(-1)
        for slot in range(k):
            row = lprobs[slot].clone()
            row[PAD] = -math.inf
            row[UNK] -= limits.unkpen
            if len(tokens) < limits.min_len:
                row[EOS] = -math.inf
            token = EOS if len(tokens) >= most else int(row.argmax())
            tokens.append(token)
            scores.append(float(row[token]))
            if token == EOS:
                return tokens, scores


@thinned(
    kind=BUILDERS,
    k=[1, 3],
    limits=[
        GenerationLimits(max_len_b=9),
        GenerationLimits(max_len_a=1.5, max_len_b=3, min_len=2, unkpen=-2.0, lenpen=0.5),
    ],
)
@torch.no_grad()
def test_equals_the_training_forward(kind: str, k: int, limits: GenerationLimits) -> None:
    drafter = make_drafter(kind)
    drafter.block_size = k
    lengths = [5, 9, 1]
    batch = make_batch(lengths)
    generator = DrafterAlone(drafter, VERIFIER, DICTIONARY, k, limits)
    hypotheses = generator.generate([], batch)
    for row, (length, (ours,)) in enumerate(zip(lengths, hypotheses, strict=True)):
        source = batch["net_input"]["src_tokens"][row, -length:]
        tokens, scores = draft_by_training_forward(drafter, source, k, limits)
        assert ours["tokens"].tolist() == tokens
        # Stock attention, which makes the features here, takes its softmax in float32.
        expected = torch.tensor(scores, dtype=torch.float64)
        torch.testing.assert_close(ours["positional_scores"], expected, atol=1e-6, rtol=1e-6)
        total = sum(scores) / len(scores) ** limits.lenpen
        assert math.isclose(float(ours["score"]), total, rel_tol=1e-6)
        longest = int(limits.max_len_a * length) + limits.max_len_b
        assert sum(ours["accepted"]) == min(len(tokens), longest)  # no EOS that the limit forces
        assert ours["steps"] == len(ours["accepted"]) == math.ceil(len(tokens) / k)


@torch.no_grad()
def test_drafts_what_speculation_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the drafter's choice is not the best token of each slot."""
    drafter = make_causal(previous_token_head=True, seed=8)
    monkeypatch.setattr(type(drafter.decoder.previous), "CANDIDATES", 2)
    drafter.attach_verifier(VERIFIER)
    k, most = 4, 14
    batch = make_batch([5, 9, 3])
    for row, (hypothesis,) in enumerate(alone(drafter, k, max_len_b=most).generate([], batch)):
        tokens = hypothesis["tokens"].tolist()
        cached = CachedDrafter(drafter)
        for begin in range(0, len(tokens), k):
            cached.start(one_row(batch, row)["net_input"], None, most + k)
            before = torch.tensor([tokens[:begin]]).long()
            last = torch.tensor([tokens[begin - 1] if begin else EOS])
            prefixes = Prefixes(before, [begin], [begin], last, None)
            _, scores = cached.draft(prefixes, k)
            end = min(begin + k, len(tokens), most)
            assert scores.choose()[0, : end - begin].tolist() == tokens[begin:end]


@pytest.mark.parametrize("k", [0, -1, 5])
def test_a_block_that_was_not_trained_is_refused(k: int) -> None:
    drafter = make_drafter("causal")
    message = f"--block-size {k}: the drafter was trained for blocks of 1 to 4"
    with pytest.raises(ValueError, match=message):
        build_generator(VERIFIER, drafter, DICTIONARY, block_size=k)
    with pytest.raises(ValueError, match=message):
        alone(drafter, k)


def outputs(generator: SpeculativeGenerator) -> list[object]:
    found = generator.generate([], make_batch([5, 3], seed=7))
    return [(one["tokens"].tolist(), one["accepted"]) for (one,) in found]


@examples(20)
@given(
    controller=st.sampled_from(sorted(CONTROLLERS.keys() - {"oracle"})),
    rows=st.integers(1, 3),
    least=st.sampled_from([1, 6]),
)
def test_nothing_stays_behind(controller: str, rows: int, least: int) -> None:
    limits = {"min_len": least, "max_len_b": 20}
    given: Any = WHOLE_CACHE, "causal", CONTROLLERS[controller]()
    expected = outputs(build(*given, **limits))
    warmed = build(*given, **limits)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    warm_up(warmed, DICTIONARY, rows, 1024)
    assert torch.equal(torch.get_rng_state(), state)
    assert warmed.limits == GenerationLimits(**limits)
    assert warmed.statistics.sentences == 0
    assert outputs(warmed) == expected
