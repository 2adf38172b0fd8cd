"""The writer computes PyTorch's states, and writes the same whatever it wrote before."""

from __future__ import annotations

import math
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import examples, make_verifier
from fairseq.models.transformer import TransformerModelBase
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.decoding.steps.verifier import VerifierStep
from specdec_plugins.engines.writer import kernel, trial, weights, writer
from specdec_plugins.engines.writer.weights import obstacle
from specdec_plugins.engines.writer.writer import Writer, build_writer
from specdec_plugins.machine import python_program

PAD, EOS, UNK = 1, 2, 3
KINDS: dict[str, dict[str, Any]] = {
    "pre-norm": {"decoder_normalize_before": True},
    "post-norm": {"decoder_normalize_before": False},
    "gelu": {"activation_fn": "gelu", "decoder_normalize_before": False},
    "gelu_accurate": {"activation_fn": "gelu_accurate"},
    "swish": {"activation_fn": "swish", "decoder_normalize_before": False},
    "learned positions": {"decoder_learned_pos": True, "layernorm_embedding": True},
    "no positions": {"no_token_positional_embeddings": True},
    "another width of output": {"decoder_output_dim": 12},
    "odd widths": {"decoder_ffn_embed_dim": 23, "decoder_normalize_before": True},
}
pytestmark = pytest.mark.skipif(
    kernel.FAMILY is None, reason="the processor has none of the writer's instructions"
)


@cache
def verifier_of(kind: str) -> TransformerModelBase:
    return make_verifier(seed=3, **KINDS[kind]).float().eval()


def step_of(kind: str) -> VerifierStep:
    return VerifierStep(verifier_of(kind))


@cache
def writer_of(kind: str) -> Writer:
    return Writer(step_of(kind), PAD, EOS, {UNK: 0.5})


def source(kind: str, seed: int, length: int = 6) -> torch.Tensor:
    made = writer_of(kind)
    shape = made.layers, 2, made.model.heads, length, made.dim
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def written(kind: str, seed: int, count: int = 20, min_len: int = 0) -> list[int]:
    return writer_of(kind).sentence(source(kind, seed), EOS, 20).write([], count, min_len)[0]


@pytest.mark.parametrize("features", ["", "-avx512vnni", "-avx512vnni,-avxvnni"])
def test_products_are_exact_with_the_instructions_of_each_family(features: str) -> None:
    """Of families that this processor has; numba is told that it lacks the better ones."""
    missing = {name[1:] for name in features.split(",") if name}
    present = [name if name[1:] not in missing else f"-{name[1:]}" for name in kernel.FEATURES]
    expected = next((x for x in kernel.FAMILIES if x.feature in present), None)
    if expected is None:
        pytest.skip("the processor has no other instructions")
    program = f"{trial.PROGRAM}; from specdec_plugins.engines.writer.kernel import FAMILY\n"
    program += "print(FAMILY.feature)"
    environment = {**os.environ, "NUMBA_CPU_FEATURES": ",".join(present)}
    done = subprocess.run(
        python_program(program), env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [expected.feature]


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_pytorchs_up_to_rounding(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert obstacle(verifier_of(kind).decoder) is None
    monkeypatch.setattr(writer, "TOLERATED", 1e-3)
    Writer(step_of(kind), PAD, EOS, {})


def test_sharp_attention_is_no_obstacle() -> None:
    """Published weights have it: rounding alone gives other states."""
    model = make_verifier(seed=3).float().eval()
    with torch.no_grad():
        for layer in model.decoder.layers:
            layer.self_attn.q_proj.weight.mul_(1000)
            layer.self_attn.k_proj.weight.mul_(10)
            layer.encoder_attn.q_proj.weight.mul_(1000)
    assert build_writer(VerifierStep(model), PAD, EOS, {}) is not None


def test_positions_are_as_many_as_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else longer outputs would have the last one over and over."""
    seen: list[int] = []

    def note(*arguments: Any) -> kernel.Model:
        model = weights.model_of(*arguments)
        seen.append(len(model.positions))
        return model

    monkeypatch.setattr(writer, "model_of", note)
    options = {**KINDS["pre-norm"], "max_target_positions": 6000}
    model = make_verifier(seed=3, **options).float().eval()
    assert build_writer(VerifierStep(model), PAD, EOS, {}) is not None
    assert seen == [6000]


@pytest.mark.parametrize("part", ["weights", "screen", "embeddings"])
def test_a_wrong_kernel_is_seen(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And ONNX Runtime writes in its place."""

    def wrong(*arguments: Any) -> kernel.Model:
        model = weights.model_of(*arguments)
        return model._replace(**{part: np.roll(getattr(model, part), 1, -1)})

    monkeypatch.setattr(writer, "model_of", wrong)
    assert build_writer(step_of("pre-norm"), PAD, EOS, {}) is None


def test_other_networks_are_left_to_onnx_runtime() -> None:
    model = make_verifier(seed=3, activation_fn="tanh")
    assert obstacle(model.decoder) is not None
    assert build_writer(VerifierStep(model), PAD, EOS, {}) is None


@examples(40)
@given(kind=st.sampled_from(list(KINDS)), seed=st.integers(0, 99), data=st.data())
def test_what_is_written_does_not_depend_on_what_was_cached(
    kind: str, seed: int, data: st.DataObject
) -> None:
    """Rejections at any place; the sentence goes on as one that begins with these tokens."""
    sentence = writer_of(kind).sentence(source(kind, seed), EOS, 20)
    committed: list[int] = []
    for _ in range(4):
        text, probabilities = sentence.write(committed, data.draw(st.integers(1, 20)))
        fresh = writer_of(kind).sentence(source(kind, seed), EOS, 20)
        assert text == fresh.write(committed, len(text) - len(committed))[0]
        assert len(probabilities) == len(text)
        assert text[: len(committed)] == committed
        assert all(0 < probability <= 1 for probability in probabilities)
        assert PAD not in text[len(committed) :]
        kept = data.draw(st.integers(0, max(0, len(text) - 1)))
        committed = [*text[:kept], data.draw(st.integers(4, 20))]
        if len(committed) >= 20:
            break
        assert sentence.unread(committed) == len(committed) + 1 - min(len(text), kept + 1)


@pytest.mark.parametrize("biased", [False, True])
def test_each_token_is_the_best_that_may_be_written(biased: bool) -> None:
    """By the states and the float32 output projection: its bias, bans and penalties included. Here
    PAD, a penalised token, and EOS before the minimum length would be the best."""
    penalised, min_len = 7, 6
    torch.manual_seed(0)
    model = make_verifier(seed=3, **KINDS["pre-norm"]).float().eval()
    projection = model.decoder.output_projection
    with torch.no_grad():
        if biased:
            projection.bias = torch.nn.Parameter(torch.randn(projection.out_features))
            projection.bias[[PAD, EOS, penalised]] += 5
        else:
            direction = model.decoder.layer_norm.bias.normal_()
            projection.weight[[PAD, EOS, penalised]] = 2 * direction
    made = Writer(VerifierStep(model), PAD, EOS, {UNK: 0.5, penalised: 99.0})
    for seed in range(5):
        sentence = made.sentence(source("pre-norm", seed), EOS, 20)
        text, _ = sentence.write([], 20, min_len)
        states = torch.from_numpy(sentence.states[: len(text)])
        logits = projection(states).detach()
        scores = logits.log_softmax(1).gather(1, torch.tensor(text)[:, None])[:, 0]
        found = made.log_probabilities(sentence, torch.tensor(text))
        torch.testing.assert_close(found, scores, rtol=0, atol=1e-5)
        assert set(logits.argmax(1).tolist()) <= {PAD, EOS, penalised}
        logits[:, [UNK, penalised]] -= torch.tensor([0.5, 99.0])
        logits[:, PAD] = logits[:min_len, EOS] = -torch.inf
        assert text == logits.argmax(1).tolist()


def test_all_kinds_share_one_compiled_function() -> None:
    for kind in KINDS:
        written(kind, 0)
    assert len(kernel.write.signatures) == 1


@pytest.mark.parametrize("kind", ["pre-norm", "post-norm"])
def test_limits_and_penalties(kind: str) -> None:
    for token in {token for seed in range(5) for token in written(kind, seed)}:
        banned = Writer(step_of(kind), PAD, EOS, {token: np.inf})
        assert token not in banned.sentence(source(kind, 0), EOS, 20).write([], 20)[0]
    assert all(EOS not in written(kind, seed, 20, 20) for seed in range(20))
    assert len(written(kind, 0, 5, 20)) == 5


def test_a_failing_compiler_is_no_obstacle(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of another version, say: ONNX Runtime takes over, and the user is warned."""

    def fails(*arguments: object) -> int:
        raise TypeError("no such intrinsic")

    monkeypatch.setattr(kernel, "write", fails)
    assert build_writer(step_of("pre-norm"), PAD, EOS, {}) is None
    assert "no such intrinsic" in caplog.text


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_model_in_another_precision(dtype: torch.dtype) -> None:
    step = VerifierStep(make_verifier(seed=3).to(dtype).eval())
    assert build_writer(step, PAD, EOS, {}) is not None


def test_the_trial_runs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies leaves no mark, and ONNX Runtime takes over."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(trial, "PROGRAM", "import os; os.abort()")
    assert not trial.runs_here()
    assert build_writer(step_of("pre-norm"), PAD, EOS, {}) is None
    monkeypatch.setattr(trial, "PROGRAM", "pass")
    assert trial.runs_here()
    monkeypatch.setattr(trial, "PROGRAM", "import os; os.abort()")
    assert trial.runs_here()


@pytest.mark.parametrize("min_len", [0, 10])
def test_no_sentence_ends_before_its_minimum(min_len: int) -> None:
    """Here a token that is written early stands for EOS, which these decoders never write."""
    kind, seed = "pre-norm", 5
    ends = written(kind, seed)[3]
    made = Writer(step_of(kind), PAD, ends, {})
    text, _ = made.sentence(source(kind, seed), EOS, 20).write([], 20, min_len)
    assert text == written(kind, seed)[: len(text)] if min_len == 0 else len(text) > min_len
    assert ends not in text[:-1]
    assert (len(text) <= 4) == (min_len == 0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("kind", ["pre-norm", "post-norm"])
def test_a_sentence_ends_where_scores_are_no_numbers(kind: str, value: float) -> None:
    """With a probability of 0, so that no draft ends there."""
    memory = source(kind, 1)
    memory[0, 1, 0, :, 0] = value
    found = writer_of(kind).sentence(memory, EOS, 20).write([], 5)
    assert found == ([EOS], [0.0])
