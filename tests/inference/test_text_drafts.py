"""Drafts that are texts, from settings and lines to translations."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.runs.inference_runs import SENTENCES, RunScript, lines_of, make_settings

from specdec_plugins.decoding.acceptance import RelaxedRule, SamplingRule
from specdec_plugins.decoding.controllers.simple import Auto, Constant
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.engines import choice
from specdec_plugins.files.lines import Line
from specdec_plugins.inference import Settings, load_translator


def texts(world: Path, **settings: object) -> list[str]:
    return [
        line.text for line in load_translator(make_settings(world, **settings)).translate(SENTENCES)
    ]


@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_each_kind_gives_the_verifiers_words(batch: int, world: Path) -> None:
    expected = texts(world, strategy="AR", batch=batch)
    assert texts(world, drafts="source", batch=batch) == expected
    translator = load_translator(make_settings(world, drafts="texts", batch=batch, path=None))
    results = list(translator.translate(SENTENCES, drafts=expected))
    assert [result.text for result in results] == expected
    assert translator.statistics.steps == sum(map(bool, expected))
    with pytest.raises(ValueError, match="shorter"):
        list(translator.translate(SENTENCES, drafts=expected[:1]))
    before = translator.statistics.drafted_tokens
    results = list(translator.translate(SENTENCES, drafts=[""] * len(SENTENCES)))
    assert [result.text for result in results] == expected
    assert translator.statistics.drafted_tokens == before
    for engine in ("auto", "eager"):
        copy = load_translator(make_settings(world, engine=engine, path=None, batch=batch))
        assert [result.text for result in copy.translate(SENTENCES)] == expected
        assert copy.precision == "float32, int8 drafts"
    for slow in ({"batch": batch, "precision": "int8"}, {"batch": 5}):
        settings = make_settings(world, engine="auto", path=None, **slow)
        assert load_translator(settings).settings.controller.name == "none", "no copy"


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        *(({}, "copy"), ({"batch": 8}, "copy"), ({"precision": "int8"}, "copy")),
        # Whoever names a drafter, or how it drafts, has it.
        *(({"drafts": "drafter"}, "drafter"), ({"drafter_named": True}, "drafter")),
        *(({"controller": Constant()}, "drafter"), ({"controller": Auto(tree_nodes=4)}, "drafter")),
        *(({"block_size": 4}, "drafter"), ({"drafter_precision": "float32"}, "drafter")),
        # Output that depends on drafts, and engines without int8.
        *(({"rule": RelaxedRule(3, 1.0)}, "drafter"), ({"rule": SamplingRule()}, "drafter")),
        *(({"engine": "eager"}, "drafter"), ({"precision": "float64"}, "drafter")),
        ({"device": "cuda"}, "drafter"),
        *(({"strategy": "AR"}, None), ({"beam": 5}, None)),
    ],
)
def test_what_a_pairs_folder_drafts_with(
    asked: dict[str, object], expected: str | None, world: Path
) -> None:
    """A copy, which is faster than the drafter wherever the drafts are left open."""
    assert Settings.of_model(world, **asked).drafts_name == expected
    if not asked:
        named = Settings.of_model(world, path=str(world / "drafter.pt"))
        assert named.drafts_name == "drafter"


@pytest.mark.parametrize(
    ("asked", "drafts", "controller"),
    [
        ({}, "copy", "constant"),
        ({"batch": 8}, None, "none"),
        ({"precision": "int8"}, None, "none"),
        ({"drafts": "drafter"}, "drafter", "tree"),
    ],
)
def test_a_pairs_folder_by_the_default_engine(
    asked: dict[str, object], drafts: str | None, controller: str, world: Path
) -> None:
    limits = GenerationLimits(max_len_b=9)
    shared = {key: value for key, value in asked.items() if key != "drafts"}
    plain = load_translator(Settings.of_model(world, limits=limits, **shared, strategy="AR"))
    ours = load_translator(Settings.of_model(world, limits=limits, **asked))
    assert (ours.settings.drafts_name, ours.settings.controller.name) == (drafts, controller)
    expected = [line.text for line in plain.translate(SENTENCES)]
    assert [line.text for line in ours.translate(SENTENCES)] == expected
    assert bool(ours.statistics.drafted_tokens) == (drafts is not None)


def test_drafts_end_with_the_longest_output(world: Path) -> None:
    """A text a million tokens long is stored no longer than its translation can be."""
    translator = load_translator(make_settings(world, drafts="texts", path=None))
    stored = translator._encode(Line(1, "w3", draft="w1 " * 1000)).draft
    assert len(stored) == 10, "9 tokens and EOS"


@pytest.mark.parametrize("empty", ["", " \u00a0"])
def test_an_empty_text_drafts_nothing(empty: str, world: Path) -> None:
    """In a batch of empty ones, and beside others."""
    translator = load_translator(make_settings(world, drafts="texts", path=None, batch=3))
    for drafts in ([empty] * 3, ["w1 w2", empty, empty]):
        found = list(translator.translate(SENTENCES[:3], drafts=drafts))
        assert [line.text for line in found] == texts(world, strategy="AR")[:3]
        assert all(not any(line.verified) for line, text in zip(found, drafts) if text == empty)


def test_a_copy_that_no_engine_can_make(
    world: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the extra [int8]: greedy, by PyTorch."""
    monkeypatch.setattr(choice, "is_installed", lambda engine: engine == "eager")
    monkeypatch.setattr("specdec_plugins.inference.drafts.copy.is_installed", choice.is_installed)
    translator = load_translator(make_settings(world, engine="auto", path=None))
    assert translator.settings.controller.name == "none"
    assert "specdec-plugins[int8]" in caplog.text
    assert [line.text for line in translator.translate(SENTENCES)] == texts(world, strategy="AR")


@pytest.mark.parametrize("drafts", ["w1\n" * 8, "w1\n" * 10, "w1\n\xff\n", None])
def test_files_of_other_lines(
    drafts: str | None, run: RunScript, tmp_path: Path, greedy: list[str]
) -> None:
    """Of what is no draft nothing is written, but of what came before."""
    file, out = tmp_path / "drafts", tmp_path / "out.txt"
    if drafts is not None:
        file.write_bytes(drafts.encode("latin-1"))
    assert run("--drafts", str(file), "--engine", "eager") == (2 if drafts is None else 1)
    written = lines_of(out) if out.exists() else []
    assert written == greedy[: len(written)]
    out.write_text("precious\n" * 9)
    assert run("--drafts", str(out)) == 1
    assert out.read_text() == "precious\n" * 9
