"""Drafts of some tokens only: which, what is left as it is, and lists that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import examples, make_batch, make_dictionary, make_task, make_verifier, thinned
from helpers.decoding.scripted import traced
from helpers.models.drafters import make_block, make_causal, save_checkpoint, slot_scores
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.checkpoints.pair import load_drafter
from specdec_plugins.decoding.acceptance import AcceptanceRule, SamplingRule, StrictRule
from specdec_plugins.decoding.build import build_generator
from specdec_plugins.decoding.controllers.base import CONTROLLERS
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.engines.onnxruntime import OnnxRuntimeEngine
from specdec_plugins.files.errors import CheckpointError
from specdec_plugins.models.drafter import Drafter
from specdec_plugins.tasks.specdec_config import TranslationSpecdecConfig
from specdec_plugins.tasks.translation_specdec import TranslationSpecdecTask

PAD, EOS, ENTRIES = 1, 2, 24
KINDS = ("block", "plain", "head")

pytestmark = pytest.mark.usefixtures("exact_softmax")


def task() -> TranslationSpecdecTask:
    dictionary = make_dictionary()
    cfg = TranslationSpecdecConfig(source_lang="en", target_lang="de", block_size=4)
    return TranslationSpecdecTask(cfg, dictionary, dictionary)


def make(kind: str, tokens: list[int] | None = None) -> Drafter:
    """A drafter that drafts ``tokens``; None: all."""
    given = make_task(block_size=4)
    model = (
        make_block(given) if kind == "block"
        else make_causal(given, previous_token_head=kind == "head")
    )  # fmt: skip
    if tokens is not None:
        model.decoder.draft_vocabulary = torch.tensor(tokens)
    return model


@examples(25)
@given(
    tokens=st.sets(st.sampled_from([i for i in range(ENTRIES) if i != PAD]), min_size=1),
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 100),
)
@torch.no_grad()
def test_scores_are_those_of_the_whole_vocabulary(tokens: set[int], kind: str, seed: int) -> None:
    """Of each slot alone: the best of the tokens that may be drafted, with the scores they had."""
    few, every = make(kind, sorted(tokens)), make(kind)
    torch.manual_seed(seed)
    x = torch.randn(3, 1, 16, dtype=torch.float64)
    last = torch.tensor([EOS, 4, 9])
    expected = every.decoder.slot_logits(x, last[:, None])[:, 0]
    forbidden = [i for i in range(ENTRIES) if i not in tokens]
    expected[:, forbidden] = -torch.inf
    found = slot_scores(few, x, last)
    assert torch.equal(found.choose()[:, 0], expected.argmax(-1))
    assert torch.equal(found.choose_with_confidence()[0], found.choose())
    lattice = found.lattice()
    assert set(lattice.candidates.flatten().tolist()) <= tokens
    scores = expected.gather(1, lattice.candidates[:, 0]).float()
    torch.testing.assert_close(lattice.first, scores)


@thinned(
    tokens=[[EOS, 5], list(range(EOS, ENTRIES, 2))],
    kind=KINDS,
    controller=["constant", "tree"],
    rule=[StrictRule(), SamplingRule()],
)
def test_drafts_are_of_the_list(
    rule: AcceptanceRule, controller: str, kind: str, tokens: list[int]
) -> None:
    """And strict output is what it is without a drafter."""
    torch.manual_seed(0)
    verifier, dictionary = make_verifier(), make_dictionary()
    given: dict[str, Any] = {"rule": rule, "limits": GenerationLimits(max_len_b=14)}
    batch = make_batch([5, 3, 9, 1], seed=3)
    model, options = make(kind, tokens), CONTROLLERS[controller]()
    speculates = traced(build_generator(verifier, model, dictionary, controller=options, **given))
    found = [hypothesis for (hypothesis,) in speculates.generate([], batch)]
    drafted = {symbol for row in found for step in row["trace"] for symbol in step.drafted}
    assert drafted
    assert drafted <= {dictionary[token] for token in (*tokens, PAD)}
    if not rule.draws:
        plain = build_generator(verifier, None, dictionary, **given).generate([], batch)
        assert [row["tokens"].tolist() for row in found] == [
            row["tokens"].tolist() for (row,) in plain
        ]


@pytest.mark.parametrize("precision", ["float32", "int8"])
@torch.no_grad()
def test_compiled_steps_draft_the_same(precision: str) -> None:
    """Candidates of the compiled step are tokens, not places in the list."""
    pytest.importorskip("onnxruntime", reason="the extra [int8] is not installed")
    from specdec_plugins.decoding.steps.drafter import DrafterStep

    tokens = [EOS, 5, 9, 14, 17, 20, 22]
    step = DrafterStep(make("head", tokens).float()).eval()
    inputs = step.example(2, 5, 7)
    expected = step(*inputs)
    found = OnnxRuntimeEngine(precision).prepare(step)(*inputs)
    assert set(found[1].flatten().tolist()) == set(tokens)
    if precision == "float32":
        assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize(
    "tokens",
    [[EOS, ENTRIES], [-1, EOS], [EOS, 5, 5], [PAD, EOS], [5, 6], [EOS, 5.0], [[EOS, 6]], [EOS]],
    ids=str,
)
def test_a_list_that_cannot_be_is_refused(tokens: list[object], tmp_path: Path) -> None:
    """By us, and where fairseq loads a model."""
    model, message = make("head"), "draft_vocabulary is no list of different tokens"
    model.decoder.draft_vocabulary = torch.tensor(tokens)
    path = save_checkpoint(tmp_path / "drafter.pt", model)
    with pytest.raises(CheckpointError, match=message):
        load_drafter(path, task())
    with pytest.raises(ValueError, match=message):
        make("head").load_state_dict(model.state_dict(), strict=True, model_cfg=model.cfg)
