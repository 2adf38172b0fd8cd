"""The shipped pairs do what their cards say."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import torch
from helpers.runs.watched import traffic

from specdec_plugins.decoding.acceptance import (
    AcceptanceRule,
    RelaxedRule,
    SamplingRule,
    StrictRule,
)
from specdec_plugins.decoding.controllers.base import CONTROLLERS
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.engines.writer import kernel
from specdec_plugins.inference import Settings, load_translator

ROOT = Path(__file__).resolve().parent.parent
CAPTIONS, WMT = "multi30k.en-de", "wmt.en-de"
SOURCES = {
    CAPTIONS: (ROOT / "data" / "captions.en").read_text("utf-8").splitlines(),
    WMT: (ROOT / "data" / "example.en").read_text("utf-8").splitlines()[::4],
}
STRICT, RELAXED = StrictRule(), RelaxedRule(3, 1.0)


@pytest.mark.parametrize(("name", "size"), [(CAPTIONS, 16_000_000), (WMT, 80_000_000)])
def test_the_folder_is_complete_and_small(name: str, size: int) -> None:
    files = {path.name: path.stat().st_size for path in (ROOT / "checkpoints" / name).iterdir()}
    heads = {f"acceptance_head{rule}.pt" for rule in ("", ".relaxed", ".sampling")}
    models = {"verifier.pt", "drafter.pt", "dict.en.txt", "dict.de.txt", "codes", "README.md"}
    assert models | heads <= set(files)
    assert sum(files.values()) <= size
    links = [path for path in (ROOT / "checkpoints" / name).iterdir() if path.is_symlink()]
    assert not links, "a copy of the folder would lack them"


@cache
def decoded(
    name: str,
    strategy: str,
    batch: int,
    rule: AcceptanceRule = STRICT,
    controller: str = "constant",
    lines: int = 99,
) -> tuple[list[str], DecodingStatistics]:
    """Return the translations of the first so many sentences, and the statistics."""
    torch.manual_seed(1)
    settings = Settings.of_model(
        ROOT / "checkpoints" / name,
        strategy=strategy,
        batch=batch,
        beam=1,
        rule=rule,
        controller=CONTROLLERS[controller](),
        precision="float64",
    )
    pair = load_translator(settings)
    return [t.text for t in pair.translate(SOURCES[name][:lines])], pair.statistics


@pytest.mark.parametrize("name", [CAPTIONS, WMT])
def test_an_int8_copy_drafts_float32s_words(name: str) -> None:
    """By the default engine; where the processor can, the writer drafts, and is mostly right."""
    folder, lines = ROOT / "checkpoints" / name, SOURCES[name][:8]
    plain = load_translator(Settings.of_model(folder, strategy="AR", batch=1))
    expected = [line.text for line in plain.translate(lines)]
    copy = load_translator(Settings.of_model(folder, drafts="copy", batch=1))
    assert [line.text for line in copy.translate(lines)] == expected
    if kernel.FAMILY is not None:
        assert "writer drafts" in copy.generator.engines.name
        assert copy.statistics.acceptance_rate > 0.8
        assert copy.statistics.drafter_calls < 1.2 * copy.statistics.committed_tokens


@pytest.mark.parametrize(
    ("name", "batch", "controller", "lines"),
    [
        (CAPTIONS, 1, "acceptance-head", 8),
        (CAPTIONS, 8, "constant", 99),
        (WMT, 5, "acceptance-head", 5),
        (WMT, 5, "tree", 99),
    ],
)
def test_strict_output_is_beam_1(name: str, batch: int, controller: str, lines: int) -> None:
    expected, _ = decoded(name, "fairseq", 8)
    found, _ = decoded(name, "specdec", batch, STRICT, controller, lines)
    assert found == expected[:lines]
    assert all(found)


BEAMS: dict[str, dict[str, object]] = {
    "beam": {"beam": 5, "nbest": 5, "batch": 8},
    "wide": {"beam": 10, "nbest": 10, "limits": GenerationLimits(lenpen=0.6)},
    "no repeats": {"beam": 5, "nbest": 5, "search_options": {"no_repeat_ngram_size": 3}},
}


@pytest.mark.parametrize(
    ("name", "search"),
    [
        *((CAPTIONS, search) for search in BEAMS),
        (WMT, "beam"),
        pytest.param(WMT, "wide", marks=pytest.mark.slow),
        pytest.param(WMT, "no repeats", marks=pytest.mark.slow),
    ],
)
def test_n_best_lists_are_stock_fairseqs(name: str, search: str) -> None:
    """In float64 and by the default engine, with their scores."""
    asked = {"precision": "float64", **BEAMS[search]}
    folder, lines = ROOT / "checkpoints" / name, SOURCES[name][:4]
    stock = load_translator(Settings.of_model(folder, strategy="fairseq", **asked))
    expected = [result.hypotheses for result in stock.translate(lines)]
    for precision, tolerance in (("float64", 1e-5), ("float32", 1e-4)):
        ours = load_translator(Settings.of_model(folder, **{**asked, "precision": precision}))
        found = [result.hypotheses for result in ours.translate(lines)]
        for several, others in zip(found, expected, strict=True):
            assert [x.tokens for x in several] == [x.tokens for x in others]
            for x, y in zip(several, others, strict=True):
                assert x.score == pytest.approx(y.score, abs=tolerance)


@pytest.mark.parametrize("rule", [RELAXED, SamplingRule()])
def test_the_rules_head_beside_the_drafter(rule: AcceptanceRule) -> None:
    """Stopping early, it discards less, and accepts not much less."""
    _, other = decoded(CAPTIONS, "specdec", 8, rule, "constant", 16)
    _, headed = decoded(CAPTIONS, "specdec", 8, rule, "acceptance-head", 16)
    assert headed.verified_tokens < 0.6 * other.verified_tokens
    assert headed.acceptance_length > 0.8 * other.acceptance_length


@pytest.mark.parametrize(
    ("name", "batch", "rule", "controller", "length"),
    [
        (CAPTIONS, 8, STRICT, "constant", 3.673),
        pytest.param(CAPTIONS, 8, RELAXED, "constant", 4.247, marks=pytest.mark.slow),
        (WMT, 5, STRICT, "tree", 4.735),
    ],
)
def test_acceptance_length_has_not_changed(
    name: str, batch: int, rule: AcceptanceRule, controller: str, length: float
) -> None:
    """It was measured when the pairs were made; see the cards."""
    _, statistics = decoded(name, "specdec", batch, rule, controller, 99)
    assert statistics.acceptance_length == pytest.approx(length, rel=0.05)


def test_relaxed_output_does_not_depend_on_the_batch() -> None:
    outputs = [decoded(CAPTIONS, "specdec", n, RELAXED, "tree", 8)[0] for n in (1, 8)]
    assert outputs[0] == outputs[1]


README = (ROOT / "README.md").read_text("utf-8")
TRANSLATE = re.findall(r"^    (specdec-translate .*)$", README, re.MULTILINE)
COMMANDS = {WMT: TRANSLATE}
OF_CAPTIONS = TRANSLATE[-1].replace(WMT, CAPTIONS).replace("example.en", "captions.en")
COMMANDS[CAPTIONS] = [OF_CAPTIONS, f"{OF_CAPTIONS} --drafts drafter"]


@pytest.mark.parametrize(
    ("name", "command"), [(name, command) for name in COMMANDS for command in COMMANDS[name]]
)
def test_readmes_command(name: str, command: str, watch: Path, tmp_path: Path) -> None:
    """As a user types it: by the default engine and with its drafts, every sentence is stock's.

    It opens no connection beyond this machine, and leaves no file of a library that reports.
    """
    for folder in ("checkpoints", "data"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    assert traffic(watch, tmp_path / "home", *command.split(), folder=tmp_path) == ""
    translations = (tmp_path / "talk.de").read_text("utf-8").splitlines()
    expected, _ = decoded(name, "fairseq", 8)
    assert translations[:: 4 if name == WMT else 1] == expected


def test_int8_changes_few_sentences() -> None:
    """By ONNX Runtime, as far as this processor's kernels are right."""
    exact, _ = decoded(WMT, "fairseq", 8)
    settings = Settings.of_model(ROOT / "checkpoints" / WMT, precision="int8")
    outputs = [t.text for t in load_translator(settings).translate(SOURCES[WMT])]
    assert sum(a != b for a, b in zip(exact, outputs, strict=True)) <= 3
