"""The shipped Multi30k pair does what its card says."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

from specdec_plugins.decoding.acceptance import (
    AcceptanceRule,
    RelaxedRule,
    SamplingRule,
    StrictRule,
)
from specdec_plugins.decoding.controllers.base import CONTROLLERS
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.inference import Settings, Translator, load_translator

pytestmark = pytest.mark.no_cover

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "checkpoints" / "multi30k.en-de"
RELAXED = RelaxedRule(3, 1.0)
SOURCES = (ROOT / "data" / "captions.en").read_text(encoding="utf-8").splitlines()


def translator(
    strategy: str,
    batch: int = 1,
    rule: AcceptanceRule | None = None,
    controller: str = "constant",
) -> Translator:
    return load_translator(
        Settings.of_model(
            MODEL,
            strategy=strategy,
            batch=batch,
            beam=1,
            rule=rule or StrictRule(),
            controller=CONTROLLERS[controller](),
            precision="float64",
        )
    )


def test_the_folder_is_complete_and_small() -> None:
    names = {path.name for path in MODEL.iterdir()}
    assert {
        "verifier.pt",
        "drafter.pt",
        "acceptance_head.pt",
        "acceptance_head.relaxed.pt",
        "acceptance_head.sampling.pt",
        "dict.en.txt",
        "dict.de.txt",
        "codes",
        "README.md",
    } <= names
    assert sum(path.stat().st_size for path in MODEL.iterdir()) <= 16_000_000


@cache
def decoded(
    strategy: str,
    batch: int,
    rule: AcceptanceRule | None = None,
    controller: str = "constant",
    lines: int = len(SOURCES),
) -> tuple[list[str], DecodingStatistics]:
    """What is said to the first so many sentences, and what it took."""
    torch.manual_seed(1)
    pair = translator(strategy, batch, rule, controller)
    return [t.text for t in pair.translate(SOURCES[:lines])], pair.statistics


@pytest.mark.parametrize(("batch", "controller"), [(1, "acceptance-head"), (8, "constant")])
def test_strict_output_is_beam_1(batch: int, controller: str) -> None:
    """With the shipped head, too, which is found beside the drafter."""
    expected, _ = decoded("fairseq", 8)
    strict, _ = decoded("specdec", batch, StrictRule(), controller, len(SOURCES))
    assert strict == expected
    assert all(expected)


@pytest.mark.parametrize(("rule", "lines"), [(RELAXED, len(SOURCES)), (SamplingRule(), 16)])
def test_the_rules_head_is_found_beside_the_drafter(rule: AcceptanceRule, lines: int) -> None:
    """Stopping early, it discards less, and accepts not much less."""
    _, other = decoded("specdec", 8, rule, "constant", lines)
    _, told = decoded("specdec", 8, rule, "acceptance-head", lines)
    assert told.verified_tokens < 0.6 * other.verified_tokens
    assert told.acceptance_length > 0.8 * other.acceptance_length


# Measured on data/captions.en when the pair was made; see the card.
@pytest.mark.parametrize(("rule", "length"), [(StrictRule(), 3.673), (RELAXED, 4.247)])
def test_acceptance_length_has_not_changed(rule: AcceptanceRule, length: float) -> None:
    _, statistics = decoded("specdec", 8, rule, "constant", len(SOURCES))
    assert statistics.acceptance_length == pytest.approx(length, rel=0.05)


def test_relaxed_output_does_not_depend_on_the_batch() -> None:
    outputs = [decoded("specdec", batch, RELAXED, "tree", 16)[0] for batch in (1, 8)]
    assert outputs[0] == outputs[1]
