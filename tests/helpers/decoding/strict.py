"""Pairs of small models, and what fairseq's own search puts out."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from conftest import make_dictionary, make_task, make_verifier, vary_output
from fairseq.models.transformer import TransformerModelBase
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from helpers.decoding.scripted import ScriptedDrafter, scripted_generator
from helpers.models.drafters import make_block, make_causal
from specdec_plugins.decoding.acceptance import AcceptanceRule, StrictRule
from specdec_plugins.decoding.batch import Prefixes
from specdec_plugins.decoding.build import build_generator
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.step_result import Hypothesis
from specdec_plugins.host.fairseq_types import Sample
from specdec_plugins.models.drafter import Drafter

DICTIONARY = make_dictionary()
BOS, PAD, EOS, UNK = 0, 1, 2, 3
K = 4

NETWORKS: dict[str, dict[str, Any]] = {
    "block": {},
    "block, learned, pre-norm": {"decoder_learned_pos": True, "decoder_normalize_before": True},
    "causal": {},
    "causal, learned": {"decoder_learned_pos": True},
    "causal, pre-norm": {"decoder_normalize_before": True},
    "causal, features": {"verifier_features": True},
    "causal, all shared": {
        "share_verifier_encoder": True,
        "verifier_features": True,
        "previous_token_head": True,
    },
}


@cache
def verifier(**overrides: Any) -> TransformerModelBase:
    """Its targets end at many lengths and hold unknown words more often than others."""
    model = vary_output(make_verifier(**overrides)).requires_grad_(False)
    model.decoder.output_projection.weight[[EOS, UNK]] *= 3
    return model


@cache
def endless(**overrides: Any) -> TransformerModelBase:
    """It never takes EOS: of two opposite logits, one is above 0."""
    model = vary_output(make_verifier(**overrides)).requires_grad_(False)
    weight = model.decoder.output_projection.weight
    weight[EOS] = 0
    weight[6] = -weight[5]
    return model


@cache
def make_drafter(name: str, seed: int = 0) -> Drafter:
    task = make_task(block_size=K)
    task.verifier = verifier()
    make = make_block if name.startswith("block") else make_causal
    return make(task, seed=seed, **NETWORKS[name])


class Stubborn(ScriptedDrafter):
    """Drafts given tokens over and over: the j-th in slot j, wherever the block starts."""

    def draft(self, prefixes: Prefixes, k: int) -> tuple[Tensor, object]:
        tokens = self.script[:, :k].expand(len(prefixes.lengths), -1)
        return tokens[..., None], self.scores(tokens)

    def select(self, rows: Tensor, width: int) -> None:
        pass


def specdec(
    name: str | list[int] | None,
    model: TransformerModelBase | None = None,
    rule: AcceptanceRule = StrictRule(),
    k: int = K,
    seed: int = 0,
    **limits: Any,
) -> SpeculativeGenerator:
    """A generator with the named drafter, with one that drafts these tokens, or with none."""
    options: Any = {"rule": rule, "limits": GenerationLimits(**limits)}
    model = model or verifier()
    if isinstance(name, list):
        return scripted_generator(model, Stubborn(torch.tensor([name])), len(name), **options)
    drafter = None if name is None else make_drafter(name, seed)
    return build_generator(model, drafter, DICTIONARY, block_size=k, **options)


def one_row(batch: Sample, row: int) -> Sample:
    """A batch of one of its sentences, without padding."""
    tokens = batch["net_input"]["src_tokens"][row]
    tokens = tokens[tokens != PAD][None]
    net_input = {"src_tokens": tokens, "src_lengths": torch.tensor([tokens.size(1)])}
    return {"id": torch.zeros(1), "net_input": net_input}


def beam1(
    model: TransformerModelBase,
    batch: Sample,
    limits: GenerationLimits | None = None,
    **begin: object,
) -> list[Hypothesis]:
    """Return the output of fairseq's beam search at beam 1; ``begin``: the beginning of targets."""
    asked = limits or GenerationLimits()
    generator = SequenceGenerator(
        [model],
        model.decoder.dictionary,
        beam_size=1,
        max_len_a=asked.max_len_a,
        max_len_b=asked.max_len_b,
        min_len=asked.min_len,
        temperature=asked.temperature,
        unk_penalty=asked.unkpen,
        len_penalty=asked.lenpen,
        normalize_scores=asked.normalize_scores,
    )
    return [hypotheses[0] for hypotheses in generator.generate([model], batch, **begin)]


@torch.no_grad()
def assert_same_words(
    outputs: list[Hypothesis],
    expected: list[Hypothesis],
    batch: Sample,
    model: TransformerModelBase,
    tie: float,
    **begin: object,
) -> None:
    """Outputs have the tokens of others, and about their scores.

    Where they begin to differ, the ``model`` in float64 scores both tokens within ``tie``: then any
    of the two may be taken.
    """
    for row, (ours, stock) in enumerate(zip(outputs, expected, strict=True)):
        found, right = ours["tokens"].tolist(), stock["tokens"].tolist()
        if found == right:
            scores = (x["positional_scores"].double() for x in (ours, stock))
            torch.testing.assert_close(*scores, atol=1e-3, rtol=1e-3)
            continue
        at = next(i for i, (token, other) in enumerate(zip(found, right)) if token != other)
        previous = torch.tensor([[begin.get("bos_token", EOS), *right[:at]]])
        net_input = one_row(batch, row)["net_input"]
        logits = model(**net_input, prev_output_tokens=previous)[0][0, -1]
        assert (logits[found[at]] - logits[right[at]]).abs() < tie, (found, right)


def check_beam1(generator: SpeculativeGenerator, batch: Sample, **begin: Any) -> list[Hypothesis]:
    """Translate; the outputs, which are :func:`beam1`'s."""
    outputs = [hypothesis for (hypothesis,) in generator.generate([], batch, **begin)]
    assert_beam1(outputs, batch, generator.model, generator.limits, **begin)
    return outputs


@torch.no_grad()
def assert_beam1(
    outputs: list[Hypothesis],
    batch: Sample,
    model: TransformerModelBase,
    limits: GenerationLimits,
    **begin: Any,
) -> None:
    """Outputs have the tokens of fairseq's beam 1, and its scores; which are float32, so that they
    are also compared with those of a full forward, with the fixture ``exact_softmax``."""
    expected = beam1(model, batch, limits, **begin)
    previous = torch.nn.utils.rnn.pad_sequence(
        [h["tokens"].roll(1) for h in expected], batch_first=True, padding_value=PAD
    )
    previous[:, 0] = begin.get("bos_token", EOS)
    logits = model(**batch["net_input"], prev_output_tokens=previous)[0]
    lprobs = (logits / limits.temperature).log_softmax(-1)
    lprobs[..., UNK] -= limits.unkpen
    for row, (ours, stock) in enumerate(zip(outputs, expected, strict=True)):
        assert ours["tokens"].tolist() == stock["tokens"].tolist()
        for key in ("positional_scores", "score"):
            torch.testing.assert_close(ours[key].float(), stock[key], atol=1e-4, rtol=1e-4)
        scores = lprobs[row].gather(1, stock["tokens"][:, None])[:, 0]
        torch.testing.assert_close(ours["positional_scores"], scores, atol=1e-9, rtol=0)
        total = scores.sum()
        if limits.normalize_scores:
            total = total / len(scores) ** limits.lenpen
        torch.testing.assert_close(ours["score"], total, atol=1e-9, rtol=0)
