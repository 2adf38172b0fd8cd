"""``specdec-tune``: what it finds is kept, told, and taken by those who leave the mode open."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from drafters import save_pair

from specdec_plugins.cli import inference, tune
from specdec_plugins.decoding.acceptance import RelaxedRule
from specdec_plugins.decoding.controllers.simple import Auto, NoDrafts, Tree
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.evaluation import tuning
from specdec_plugins.evaluation.tuning import FINALISTS, ROUNDS, TREES, list_modes
from specdec_plugins.files.lines import Line
from specdec_plugins.inference import Settings, Translator, as_tuned, load_translator
from specdec_plugins.inference.tuned_modes import (
    Mode,
    Table,
    Timed,
    describe,
    save_table,
    table_path,
)

TEXT = "w3 w4 w5 w6\n\nw7\nw1 w2 w3\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_pair(tmp_path_factory.mktemp("pair"))
    (folder / "example.en").write_text(TEXT)
    return folder


@pytest.fixture
def pair(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return made


def flags(pair: Path, *more: str) -> list[str]:
    models = ["--path", str(pair / "drafter.pt"), "--AR-path", str(pair / "verifier.pt")]
    return [str(pair), *models, "--cpu", "--max-len-b", "8", *more]


@pytest.fixture
def settings(pair: Path) -> Settings:
    return Settings(str(pair), str(pair / "verifier.pt"), str(pair / "drafter.pt"))


Keep = Callable[..., Table]


@pytest.fixture
def keep(settings: Settings) -> Keep:
    """Keeps a table, fastest mode first."""

    def run(*modes: Mode, threads: int = 1, batch: int = 1, **key: Any) -> Table:
        timed = [Timed(mode, [float(place)]) for place, mode in enumerate(modes, 1)]
        table = Table({**describe(settings, threads), **key}, "now", {batch: timed})
        save_table(table)
        return table

    return run


def test_the_fastest_way_is_found_and_taken(
    pair: Path, settings: Settings, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert tune.main(flags(pair, "--batch", "1", "3", "--check", str(pair / "example.en"))) == 0
    told = capfd.readouterr().out
    path = table_path(describe(settings, 1))
    assert str(path) in told
    table = msgspec.json.decode(path.read_bytes(), type=Table)
    assert list(table.batches) == [1, 3]
    for timed in table.batches.values():
        assert {one.mode.tree for one in timed} == {0, *TREES}
        assert [len(one.milliseconds) for one in timed[:FINALISTS]] == [ROUNDS] * FINALISTS
        best = timed[0]
        assert best.middle == min(one.middle for one in timed if len(one.milliseconds) == ROUNDS)
    assert f"Batch 3: {table.batches[3][0].mode}." in told
    assert told.count("\n| example.en, batch ") == 2
    # Whoever leaves the mode open goes it, and says so.
    stats = tmp_path / "stats.json"
    output = ["--input-path", str(pair / "example.en"), "--stats-json", str(stats), "--quiet"]
    assert inference.main(flags(pair, *output)) == 0
    taken = json.loads(stats.read_text())["settings"]
    best = table.batches[1][0].mode
    expected = best.applied(settings)
    assert taken["controller"] == expected.controller.describe()
    assert taken["ar_backend"] == expected.ar_backend
    found = capfd.readouterr().out
    assert inference.main(flags(pair, *output, "--controller", "none")) == 0
    assert capfd.readouterr().out == found


def test_what_is_left_open_follows_the_table(settings: Settings, keep: Keep) -> None:
    keep(Mode(6), Mode())
    assert as_tuned(settings).controller == Tree(tree_nodes=6)
    keep(Mode(), Mode(6))
    assert as_tuned(settings).controller == NoDrafts()
    assert as_tuned(replace(settings, strategy="AR")).ar_backend == "ours"
    # What is said, or would depend on what took how long, stays.
    for said in (
        replace(settings, controller=Tree()),
        replace(settings, controller=Auto(tree_nodes=12)),
        replace(settings, rule=RelaxedRule(3, 1.0)),
        replace(settings, strategy="fairseq"),
        replace(settings, strategy="AR", ar_backend="ours"),
        replace(settings, precision="float64"),
        replace(settings, target_prefix="w1"),
    ):
        assert as_tuned(said) == said


def test_modes_that_do_not_suit_are_passed_over(
    settings: Settings, keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verifier alone has no trees; a backend may be missing, or ruled out."""
    alone = replace(settings, path=None)
    modes = list_modes(alone)
    assert modes[0] == Mode()
    assert not any(mode.tree for mode in modes)
    keep(Mode(), **describe(alone, 1))
    assert as_tuned(alone).controller == NoDrafts()
    monkeypatch.setattr("specdec_plugins.inference.ctranslate2.is_installed", lambda: False)
    keep(Mode(ar_backend="ctranslate2"), Mode(4))
    for ruled_out in (settings, replace(settings, ar_backend="ours")):
        assert as_tuned(ruled_out).controller == Tree(tree_nodes=4)
    prefixed = replace(settings, target_prefix="w1")
    keep(Mode(ar_backend="ctranslate2"), Mode(8), **describe(prefixed, 1))
    assert as_tuned(prefixed).controller == Tree(tree_nodes=8), "a table of its own"


def test_ar_and_trees_of_a_trial_have_the_same_models(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And AR drafts nothing with them."""
    loaded: list[Translator] = []

    def load(asked: Settings) -> Translator:
        loaded.append(load_translator(asked))
        return loaded[-1]

    calls: dict[str, int] = {}
    monkeypatch.setattr(tuning, "load_translator", load)
    limited = replace(settings, limits=GenerationLimits(max_len_b=4))
    noted = [("", 0)]

    def note(what: str) -> None:
        count = loaded[0].statistics.drafter_calls if loaded else 0
        calls[noted[-1][0]] = count - noted[-1][1]
        noted.append((what, count))

    trial = tuning.Trial(limited, [Mode(), Mode(4)], note)
    trial.load()
    trial.run(1, [Line(1, "w3 w4")], rounds=1)
    note("the end")
    assert len(loaded) == 1
    assert calls["batch 1, round 1: AR by our loop"] == 0
    assert calls["batch 1, round 1: trees of 4"] > 0


def test_a_batch_size_that_was_not_tried_is_as_the_next_smaller(
    settings: Settings, keep: Keep
) -> None:
    table = keep(Mode(4), batch=8)
    timed = {8: table.batches[8], 32: [Timed(Mode(), [1.0])]}
    table = Table(table.key, "now", timed)
    assert [table.at(batch)[0].mode.tree for batch in (1, 8, 31, 32, 99)] == [4, 4, 4, 0, 0]


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"nothing", b'{"key": {}, "made": "", "batches": {"1": []}}', None]
)
def test_what_is_damaged_or_stale_is_not_believed(
    settings: Settings, keep: Keep, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    table = keep(Mode(4), versions={"torch": "0"})
    path = table_path(table.key)
    if content is not None:
        path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert as_tuned(settings) == settings
    assert f"{path}: cannot be used" in caplog.text
    assert ("measured with other versions.torch" in caplog.text) == (content is None)


def test_what_is_of_others_is_not_believed(
    settings: Settings, keep: Keep, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep(Mode(4), threads=2)
    keep(Mode(4), processor="another")
    assert as_tuned(settings) == settings
    assert as_tuned(settings, threads=2).controller != settings.controller
    changed = replace(settings, path=str(tmp_path / "drafter.pt"))
    Path(str(changed.path)).write_bytes(Path(str(settings.path)).read_bytes() + b"changed")
    assert as_tuned(changed, threads=2) == changed
    assert "again" not in caplog.text


def test_a_text_to_try_is_needed(pair: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (pair / "example.de").write_text(TEXT)
    try:
        assert tune.main(flags(pair)) == 2
    finally:
        (pair / "example.de").unlink()
    assert "--input-path: give a text" in capfd.readouterr().err
