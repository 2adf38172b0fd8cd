"""The published checkpoints, loaded as they are, decide as the published code did: every step."""

from __future__ import annotations

import json
from typing import Any

import pytest
from helpers.models.drafters import PUBLISHED, needs_published, published_task

from specdec_plugins.decoding.acceptance import choose_rule
from specdec_plugins.inference import Settings, Translation, load_translator

pytestmark = needs_published

ALL = 200
FEW = 24
SETTINGS = [(k, beta, tau) for k in (5, 10) for beta, tau in ((1, "0"), (3, "1.0"), (5, "3.0"))]
EOS = "</s>"
SOME_OR_ALL = pytest.mark.parametrize("lines", [FEW, pytest.param(ALL, marks=pytest.mark.slow)])


def published_lines(name: str) -> list[str]:
    """The published code takes "@@ " out by a plain replacement, so that the marker stays where a
    line ends in the middle of a word (defect D17 of its known ones).
    """
    lines = (PUBLISHED / "out" / f"{name}.out").read_text("utf-8").splitlines()
    return [line.removesuffix("@@") for line in lines]


def translate(batch: int, strategy: str, lines: int, **settings: Any) -> list[Translation]:
    files = {"path": str(PUBLISHED / "drafter.pt"), "ar_path": str(PUBLISHED / "verifier.pt")}
    settings |= {"source_lang": "en", "target_lang": "de", "strategy": strategy, "batch": batch}
    settings["drafter_precision"] = "float32"  # drafts are compared, too
    translator = load_translator(Settings(str(PUBLISHED / "dict"), **files, **settings))
    source = (PUBLISHED / "test200.bpe.en").read_text("utf-8").splitlines()
    assert len(source) == ALL
    return list(translator.translate(source[:lines]))


def published_steps(line: str) -> list[tuple[list[str], int]]:
    """Return the drafted tokens of every step and how many were committed, EOS included."""
    steps, dictionary = [], published_task().target_dictionary
    for step in json.loads(line)["trace"]:
        drafted = [dictionary[token] for token in step["draft"]]
        # That code went on counting after EOS.
        ends = drafted.index(EOS) + 1 if EOS in drafted else len(drafted)
        steps.append((drafted, min(step["m"], ends)))
    return steps


@SOME_OR_ALL
@pytest.mark.parametrize(
    ("k", "beta", "tau", "batch"),
    [
        *((*setting, 8) for setting in SETTINGS),
        (*SETTINGS[0], 1),
        pytest.param(*SETTINGS[4], 1, marks=pytest.mark.slow),
    ],
)
def test_outputs_and_steps(k: int, beta: int, tau: str, batch: int, lines: int) -> None:
    name = f"specdec_k{k}_beta{beta}_tau{tau}"
    rule = choose_rule({"beta": beta, "tau": float(tau)})
    results = translate(batch, "specdec", lines, rule=rule, block_size=k, trace=True)
    traces = (PUBLISHED / "trace" / f"paper_{name}.jsonl").read_text("utf-8").splitlines()
    texts = [translation.text for translation in results]
    assert (len(texts), len(traces)) == (lines, ALL)
    assert texts == published_lines(f"paper_{name}")[:lines]
    assert texts == published_lines(f"batched_specdec_b8_{name[8:]}")[:lines]
    for translation, trace in zip(results, traces):
        assert translation.trace is not None
        steps = [(step.drafted, step.accepted) for step in translation.trace.steps]
        assert steps == published_steps(trace)


@SOME_OR_ALL
@pytest.mark.parametrize(
    ("name", "strategy", "batch", "k"),
    [
        ("paper_AR", "AR", 1, None),
        ("paper_AR", "AR", 8, None),
        ("drafter_k5", "drafter", 8, 5),
        ("drafter_k10", "drafter", 8, 10),
    ],
)
def test_baselines(name: str, strategy: str, batch: int, k: int | None, lines: int) -> None:
    results = translate(batch, strategy, lines, block_size=k)
    assert [result.text for result in results] == published_lines(name)[:lines]
