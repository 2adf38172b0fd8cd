"""Length limits, bans and odd drafts: defined, and where strict the same as fairseq's beam 1."""

from __future__ import annotations

import math
from argparse import Namespace
from functools import cache
from typing import Any

import pytest
import torch
from conftest import make_batch, make_dictionary, make_task, make_verifier, vary_output
from drafters import make_block, make_causal
from fairseq.dataclass.configs import GenerationConfig
from fairseq.sequence_generator import SequenceGenerator
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_plugins.decoding import controllers
from specdec_plugins.decoding.acceptance import AcceptanceRule
from specdec_plugins.decoding.batch import Prefixes
from specdec_plugins.decoding.controllers import Draft
from specdec_plugins.decoding.drafter_only import DrafterOnlyGenerator
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import LARGEST, REFUSED, GenerationLimits

DICTIONARY = make_dictionary()
BOS, PAD, EOS, UNK = 0, 1, 2, 3
K = 4

DRAFTERS: dict[str, dict[str, Any]] = {
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
def verifier(**overrides: Any) -> Any:
    """Its targets end at many lengths and hold unknown words more often than others."""
    model = vary_output(make_verifier(**overrides)).requires_grad_(False)
    model.decoder.output_projection.weight[[EOS, UNK]] *= 3
    return model


@cache
def endless(**overrides: Any) -> Any:
    """It never takes EOS: of two opposite logits, one is above 0."""
    model = vary_output(make_verifier(**overrides)).requires_grad_(False)
    weight = model.decoder.output_projection.weight
    weight[EOS] = 0
    weight[6] = -weight[5]
    return model


def test_the_verifier_ends_its_targets_at_many_lengths() -> None:
    """Or else the tests below would show little."""
    lengths, unknown = set(), 0
    for seed in range(6):
        for hypothesis in beam1(make_batch([5, 3, 9, 1, 7, 2, 8], seed=seed), max_len_b=25):
            lengths.add(len(hypothesis["tokens"]))
            unknown += int(UNK in hypothesis["tokens"])
    assert len(lengths) > 5
    assert unknown > 5


@cache
def drafter(name: str, seed: int = 0) -> Any:
    task = make_task(block_size=K)
    task.verifier = verifier()
    make = make_block if name.startswith("block") else make_causal
    return make(task, seed=seed, **DRAFTERS[name])


class Constant:
    """Drafts given tokens over and over: ``tokens[j]`` in slot j, wherever the block starts."""

    causal = False
    reads_features = False

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = torch.tensor(tokens)

    def encode(self, net_input: Any, verifier_out: Any) -> Any:
        return verifier_out

    def start(self, *args: Any) -> None:
        pass

    def draft(self, prefixes: Prefixes, *args: Any) -> Draft:
        rows = len(prefixes.lengths)
        return Draft(self.tokens.expand(rows, -1))

    def keep(self, *args: Any) -> None:
        pass


def specdec(
    name: str | list[int] | None,
    model: Any = None,
    rule: AcceptanceRule | None = None,
    k: int = K,
    seed: int = 0,
    **limits: Any,
) -> SpeculativeGenerator:
    generator = SpeculativeGenerator(
        model or verifier(),
        drafter(name, seed) if isinstance(name, str) else None,
        DICTIONARY,
        k,
        rule,
        GenerationLimits(**limits),
    )
    if isinstance(name, list):
        generator.drafter = Constant(name)  # type: ignore[assignment]
        generator.block_size = len(name)
        generator.controller = controllers.Constant(controllers.Bounds(0, len(name)))
    return generator


def beam1(batch: Any, model: Any = None, **options: Any) -> list[Any]:
    generator = SequenceGenerator([model or verifier()], DICTIONARY, beam_size=1, **options)
    return [hypotheses[0] for hypotheses in generator.generate([model or verifier()], batch)]


def assert_same(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for (ours,), theirs in zip(found, expected):
        assert ours["tokens"].tolist() == theirs["tokens"].tolist()
        for key in ("positional_scores", "score"):
            torch.testing.assert_close(ours[key].float(), theirs[key], atol=1e-4, rtol=1e-4)


@settings(max_examples=60)
@given(
    name=st.sampled_from(sorted(DRAFTERS)),
    seed=st.integers(0, 3),
    lengths=st.sampled_from([[6], [1], [6, 2, 9, 1, 4]]),
    sentences=st.integers(0, 999),
    k=st.integers(1, K),
    max_len_b=st.integers(1, 20),
)
def test_strict_output_is_beam_1_whatever_the_drafter(
    name: str, seed: int, lengths: list[int], sentences: int, k: int, max_len_b: int
) -> None:
    batch = make_batch(lengths, seed=sentences)
    generator = specdec(name, k=k, seed=seed, max_len_b=max_len_b)
    assert_same(generator.generate([], batch), beam1(batch, max_len_b=max_len_b))
    statistics = generator.statistics
    assert statistics.sentences == len(lengths)
    assert statistics.drafted_tokens == k * statistics.steps


@pytest.mark.parametrize("name", [None, "block", "causal", [5, 6, 7], [EOS, EOS]])
@pytest.mark.parametrize("rule", [AcceptanceRule(), AcceptanceRule(5, 3.0)])
@pytest.mark.parametrize("max_len_b", [1, 2, 5, 11])
def test_a_target_stops_at_the_length_limit(
    max_len_b: int, rule: AcceptanceRule, name: str | list[int] | None
) -> None:
    """EOS follows the last token that is allowed, and nothing else does."""
    batch = make_batch([5, 3, 9, 1], seed=1)
    found = specdec(name, model=endless(), rule=rule, max_len_b=max_len_b).generate([], batch)
    lengths = {len(hypothesis[0]["tokens"]) for hypothesis in found}
    if rule.beta == 1:
        assert lengths == {max_len_b + 1}
    assert max(lengths) <= max_len_b + 1
    for (hypothesis,) in found:
        tokens = hypothesis["tokens"].tolist()
        assert tokens.index(EOS) == len(tokens) - 1
        assert hypothesis["positional_scores"].isfinite().all()
        assert len(hypothesis["accepted"]) == hypothesis["steps"]
    if rule.beta == 1:
        assert_same(found, beam1(batch, endless(), max_len_b=max_len_b))


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("name", [None, "block", "causal, learned"])
def test_the_verifiers_position_table_limits_the_target(name: str | None, learned: bool) -> None:
    model = endless(max_target_positions=16, decoder_learned_pos=learned)
    assert model.max_decoder_positions() == 16
    batch = make_batch([5, 3, 9, 1, 7, 2], seed=2)
    found = specdec(name, model=model).generate([], batch)
    assert {len(hypothesis[0]["tokens"]) for hypothesis in found} == {16}
    assert_same(found, beam1(batch, model))


def test_a_drafter_with_fewer_positions_than_the_verifier_only_drafts_worse() -> None:
    task = make_task(block_size=K)
    for make in (make_block, make_causal):
        short = make(task, max_target_positions=6, decoder_learned_pos=True)
        generator = SpeculativeGenerator(
            verifier(), short, DICTIONARY, K, limits=GenerationLimits(max_len_b=20)
        )
        batch = make_batch([5, 3, 9], seed=1)
        assert_same(generator.generate([], batch), beam1(batch, max_len_b=20))


@settings(max_examples=30)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    seed=st.integers(0, 99),
    max_len_a=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    max_len_b=st.integers(1, 4),
    min_len=st.integers(0, 1),
)
def test_max_len_a_counts_each_rows_own_source(
    lengths: list[int], seed: int, max_len_a: float, max_len_b: int, min_len: int
) -> None:
    options = {"max_len_a": max_len_a, "max_len_b": max_len_b, "min_len": min_len}
    batch = make_batch(lengths, seed=seed)
    found = specdec("causal", **options).generate([], batch)
    source = batch["net_input"]["src_tokens"]
    for row, length in enumerate(lengths):
        one = {
            "src_tokens": source[row : row + 1, -length:],
            "src_lengths": torch.tensor([length]),
        }
        assert_same([found[row]], beam1({"net_input": one}, **options))
        assert len(found[row][0]["tokens"]) <= int(max_len_a * length + max_len_b) + 1


@pytest.mark.parametrize("name", [None, "causal"])
@pytest.mark.parametrize("min_len", [2, 6, 12])
def test_min_len_is_fairseqs(min_len: int, name: str | None) -> None:
    batch = make_batch([5, 3, 9, 1], seed=3)
    found = specdec(name, max_len_b=12, min_len=min_len).generate([], batch)
    assert_same(found, beam1(batch, max_len_b=12, min_len=min_len))
    assert min(len(hypothesis[0]["tokens"]) for hypothesis in found) >= min_len + 1


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"min_len": 5, "max_len_b": 4}, "--min-len 5: is above the maximum length, 4"),
        ({"min_len": 100}, "--min-len 100: is above the maximum length, 63"),
        ({"min_len": 64, "max_len_a": 9.0}, "--min-len 64: is above the maximum length, 63"),
        (
            {"min_len": 4, "max_len_a": 0.5, "max_len_b": 1},
            "--min-len 4: is above the maximum length of a source of 3 tokens, 2",
        ),
    ],
)
def test_a_minimum_above_the_maximum_is_an_error(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        specdec(None, **limits).generate([], make_batch([9, 3]))


@pytest.mark.parametrize("strategy", ["specdec", "drafter"])
def test_what_no_source_can_have_is_refused_before_any(strategy: str) -> None:
    make = specdec if strategy == "specdec" else drafter_only
    for limits in ({"min_len": 9, "max_len_b": 8}, {"min_len": 99, "max_len_a": 5.0}):
        with pytest.raises(ValueError, match=r"--min-len \d+: is above the maximum length, "):
            make("causal, learned", **limits)


def drafter_only(name: str, **limits: Any) -> DrafterOnlyGenerator:
    return DrafterOnlyGenerator(
        drafter(name), DICTIONARY, K, GenerationLimits(**limits), verifier()
    )


@given(
    a=st.floats(0, 1e308),
    b=st.integers(0, LARGEST),
    least=st.integers(0, LARGEST),
    source=st.integers(1, 2000),
    positions=st.integers(2, 5000),
)
def test_most_is_what_rows_are_given(
    a: float, b: int, least: int, source: int, positions: int
) -> None:
    limits = GenerationLimits(max_len_a=a, max_len_b=b, min_len=least)
    rows = limits.longest(torch.tensor([source])).clamp(max=positions - 1).long()
    assert limits.most(source, positions) == rows.item()
    assert (limits.fault(source, positions) is None) == (least <= rows.item())


@pytest.mark.parametrize("count", [-1, LARGEST + 1, 10**400])
@pytest.mark.parametrize("name", ["max_len_b", "min_len"])
def test_counts_beyond_all_numbers(name: str, count: int) -> None:
    flag = f"--{name.replace('_', '-')} {count}: must be between 0 and"
    with pytest.raises(ValueError, match=flag):
        GenerationLimits(**{name: count})


SCORING: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"temperature": 0.5}, {"temperature": 0.5}),
    ({"unkpen": math.inf}, {"unk_penalty": math.inf}),
    ({"lenpen": 0.6}, {"len_penalty": 0.6}),
    ({"normalize_scores": False}, {"normalize_scores": False}),
    ({"unkpen": 2.5}, {"unk_penalty": 2.5}),
    ({"unkpen": -4.0}, {"unk_penalty": -4.0}),
]


@pytest.mark.parametrize(("ours", "theirs"), SCORING)
def test_scores_are_fairseqs(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    batch = make_batch([5, 3, 9, 1, 7, 2, 8], seed=3)
    plain = beam1(batch, max_len_b=25)
    expected = beam1(batch, max_len_b=25, **theirs)
    assert [h["score"] for h in plain] != [h["score"] for h in expected]
    assert_same(specdec("causal", max_len_b=25, **ours).generate([], batch), expected)


@pytest.mark.parametrize("token", [BOS, PAD, EOS, UNK, 5])
@pytest.mark.parametrize("slot", [None, 0, 2])
def test_any_token_may_be_drafted_anywhere(slot: int | None, token: int) -> None:
    tokens = [token] * K if slot is None else [6] * slot + [token] + [7] * (K - slot - 1)
    batch = make_batch([5, 3, 9, 1], seed=4)
    found = specdec(tokens, max_len_b=13).generate([], batch)
    assert_same(found, beam1(batch, max_len_b=13))


def test_what_follows_a_drafted_eos_is_not_committed() -> None:
    """However good it is: EOS ends the row."""
    rule = AcceptanceRule(24, math.inf)
    generator = specdec([6, EOS, 7, 8], rule=rule, max_len_b=20)
    found = generator.generate([], make_batch([5, 3]))
    for (hypothesis,) in found:
        assert hypothesis["tokens"].tolist() == [6, EOS]
        assert hypothesis["accepted"] == [2]
    assert generator.statistics.committed_tokens == generator.statistics.accepted_tokens == 4
    # Not even EOS, where it is not allowed yet: the verifier's own token stands there.
    found = specdec([6, EOS, 7, 8], rule=rule, max_len_b=20, min_len=2).generate(
        [], make_batch([5, 3])
    )
    for (hypothesis,) in found:
        tokens = hypothesis["tokens"].tolist()
        assert tokens[0] == 6
        assert EOS not in tokens[:2]
        assert hypothesis["accepted"][0] == 1


@settings(max_examples=40)
@given(
    tokens=st.lists(st.sampled_from([BOS, PAD, EOS, UNK, 5, 9]), min_size=1, max_size=K),
    seed=st.integers(0, 99),
    max_len_b=st.integers(1, 12),
    min_len=st.integers(0, 1),
    unkpen=st.sampled_from([0.0, math.inf]),
)
def test_the_widest_acceptance_still_keeps_to_what_is_allowed(
    tokens: list[int], seed: int, max_len_b: int, min_len: int, unkpen: float
) -> None:
    rule = AcceptanceRule(len(DICTIONARY), math.inf)
    batch = make_batch([5, 1, 7], seed=seed)
    generator = specdec(tokens, rule=rule, max_len_b=max_len_b, min_len=min_len, unkpen=unkpen)
    for (hypothesis,) in generator.generate([], batch):
        found = hypothesis["tokens"].tolist()
        assert PAD not in found
        assert unkpen == 0.0 or UNK not in found
        assert found.index(EOS) == len(found) - 1
        assert min_len <= len(found) - 1 <= max_len_b
        assert hypothesis["positional_scores"].isfinite().all()
    # Whatever else was drafted has been taken, so the very first block is.
    allowed = [t for t in tokens if t != PAD and not (t == UNK and unkpen)]
    if allowed == tokens and EOS not in tokens and len(tokens) <= max_len_b:
        assert all(h[0]["accepted"][0] == len(tokens) for h in generator.generate([], batch))


def test_unknown_words_and_empty_lines_are_sentences() -> None:
    batch = make_batch([5, 1, 4], seed=5)
    source = batch["net_input"]["src_tokens"]
    source[0, :4] = UNK
    assert source[1].tolist() == [PAD] * 4 + [EOS]
    for name in ("block", "causal", "causal, all shared"):
        found = specdec(name, max_len_b=9).generate([], batch)
        assert_same(found, beam1(batch, max_len_b=9))


@pytest.mark.parametrize(("name", "flag", "nothing"), REFUSED)
def test_options_that_would_be_ignored_are_refused_by_name(
    name: str, flag: str, nothing: Any
) -> None:
    asked: Any = {False: True, None: "x"}.get(nothing, 3)
    with pytest.raises(ValueError, match=f"{flag} {asked}: not supported by speculative decoding"):
        GenerationLimits.from_config(Namespace(**{name: asked}))
    assert GenerationLimits.from_config(Namespace(**{name: nothing})) == GenerationLimits()


def test_limits_come_from_fairseqs_config() -> None:
    assert GenerationLimits.from_config(GenerationConfig()) == GenerationLimits()
    assert GenerationLimits.from_config(None) == GenerationLimits()
    cfg = GenerationConfig(
        max_len_a=1.2,
        max_len_b=10,
        min_len=2,
        unkpen=0.5,
        temperature=0.7,
        lenpen=0.9,
        unnormalized=True,
    )
    assert GenerationLimits.from_config(cfg) == GenerationLimits(1.2, 10, 2, 0.5, 0.7, 0.9, False)
    with pytest.raises(ValueError, match="--nbest: speculative decoding gives one hypothesis"):
        GenerationLimits.from_config(GenerationConfig(nbest=2))


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"temperature": 0.0}, r"--temperature 0\.0: must be a number from 1e-06 on"),
        ({"temperature": math.nan}, "--temperature nan: must be a number"),
        ({"temperature": math.inf}, "--temperature inf: must be a number"),
        ({"max_len_b": -1}, "--max-len-b -1: must be between 0 and"),
        ({"max_len_a": -0.5}, r"--max-len-a -0\.5: must be a number, 0 or more"),
        ({"max_len_a": math.inf}, "--max-len-a inf: must be a number, 0 or more"),
        ({"unkpen": math.nan}, "--unkpen nan: must be a number"),
        ({"unkpen": -math.inf}, "--unkpen -inf: must be a number"),
        ({"lenpen": math.nan}, "--lenpen nan: must be a number"),
    ],
)
def test_impossible_limits_are_named(settings_: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GenerationLimits(**settings_)


@pytest.mark.parametrize("huge", [{"max_len_b": LARGEST}, {"max_len_a": 1e300}])
@pytest.mark.parametrize("name", [None, "causal"])
def test_no_limit_is_too_high(name: str | None, huge: dict[str, Any]) -> None:
    batch = make_batch([5, 3])
    most = verifier().max_decoder_positions()
    found, expected = (
        [h["tokens"].tolist() for (h,) in specdec(name, **limits).generate([], batch)]
        for limits in (huge, {"max_len_b": most})
    )
    assert found == expected


def test_a_penalty_may_be_beyond_all_numbers() -> None:
    for (hypothesis,) in specdec(None, max_len_b=9, lenpen=1e4).generate([], make_batch([5, 3])):
        assert hypothesis["score"] == 0


@pytest.mark.parametrize("k", [0, -1, K + 1])
def test_a_block_that_was_not_trained_is_refused(k: int) -> None:
    with pytest.raises(
        ValueError, match=f"--block-size {k}: the drafter was trained for blocks of 1 to {K}"
    ):
        specdec("causal", k=k)


def test_prefix_tokens_and_constraints_are_refused() -> None:
    batch = make_batch([5])
    for arguments in ({"prefix_tokens": torch.tensor([[5]])}, {"constraints": torch.tensor([1])}):
        with pytest.raises(ValueError, match="prefix tokens and constraints: not supported"):
            specdec(None).generate([], batch, **arguments)
