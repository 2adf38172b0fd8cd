"""``specdec-tune``: what it finds is kept, told, and taken by those who leave the mode open."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from helpers.models.drafters import save_pair

from specdec_plugins.cli import inference, tune
from specdec_plugins.decoding.acceptance import RelaxedRule
from specdec_plugins.decoding.controllers.simple import Auto, Tree
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.evaluation import tuning
from specdec_plugins.evaluation.tuning import FINALISTS, ROUNDS, list_modes
from specdec_plugins.files.lines import Line
from specdec_plugins.files.output import write_json
from specdec_plugins.inference import Settings, as_tuned, load_translator, tuned_modes
from specdec_plugins.inference.systems import parse_system
from specdec_plugins.inference.tuned_modes import (
    COPY,
    STEP_BY_STEP,
    Table,
    Timed,
    describe,
    table_path,
)
from specdec_plugins.inference.writer_backend import MAX_ROWS
from specdec_plugins.machine import cache_folder

Keep = Callable[..., Table]
TREES = [f"tree@tree_nodes={size}" for size in (4, 6, 8, 12)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_pair(tmp_path_factory.mktemp("pair"))
    (folder / "example.en").write_text("w3 w4 w5 w6\n\nw7\nw1 w2 w3\n")
    return folder


@pytest.fixture
def settings(pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr("specdec_plugins.inference.backends.find_spec", lambda name: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Settings(str(pair), str(pair / "verifier.pt"), str(pair / "drafter.pt"))


@pytest.fixture
def keep(settings: Settings) -> Keep:
    """Keeps a table, fastest mode first."""

    def run(*modes: str, threads: int = 1, batch: int = 1, **key: Any) -> Table:
        timed = [Timed(mode, [float(place)]) for place, mode in enumerate(modes, 1)]
        table = Table({**describe(settings, threads), **key}, {batch: timed})
        write_json(table_path(table.key), table)
        return table

    return run


def test_the_fastest_way_is_found_and_taken(
    pair: Path,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(tuned_modes, "TREES", (4, 8))
    monkeypatch.setattr(tuning, "MIN_LINES", 2)
    flags = f"{pair} --cpu --max-len-b 8".split()
    assert tune.main([*flags, "--batch", "1", "3"]) == 0
    path = table_path(describe(settings, 1))
    shown = capfd.readouterr().out
    assert str(path) in shown
    assert shown.count(" times fairseq's greedy search.") == 2  # of each batch size
    table = msgspec.json.decode(path.read_bytes(), type=Table)
    assert list(table.batches) == [1, 3]
    # Another size is added to what is known.
    assert tune.main([*flags, "--batch", "2"]) == 0
    capfd.readouterr()
    more = msgspec.json.decode(path.read_bytes(), type=Table)
    assert {size: more.batches[size] for size in (1, 3)} == table.batches
    assert sorted(more.batches) == [1, 2, 3]
    for timed in table.batches.values():
        drafts = ["constant@drafts=copy", TREES[0], "tree@tree_nodes=8"]
        expected_modes = {"AR", *(f"{kind},drafter_precision=int8" for kind in drafts)}
        assert {item.mode for item in timed} == expected_modes
        assert [len(item.milliseconds) for item in timed[:FINALISTS]] == [ROUNDS] * FINALISTS
        whole = [item.middle for item in timed if len(item.milliseconds) == ROUNDS]
        assert timed[0].middle == min(whole)
    # Whoever leaves the mode open goes it, and says so.
    stats = tmp_path / "stats.json"
    flags += ["--input-path", str(pair / "example.en"), "--stats-json", str(stats), "--quiet"]
    assert inference.main(flags) == 0
    taken = json.loads(stats.read_text())["settings"]
    expected = parse_system(table.batches[1][0].mode, settings)
    drafts = expected.kind is not None
    assert taken["strategy"] == expected.strategy
    assert taken["controller"] == (expected.controller.describe() if drafts else None)
    found = capfd.readouterr().out
    assert inference.main([*flags, "--controller", "none"]) == 0
    assert capfd.readouterr().out == found


def test_a_stored_choice_is_checked_on_other_lines(
    pair: Path,
    settings: Settings,
    keep: Keep,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = [Line(i, f"w{i}") for i in range(40)]
    tried, again = (tuning.lines_to_try(text, 8, check) for check in (False, True))
    assert not {line.number for line in tried} & {line.number for line in again}
    monkeypatch.setattr(tuning, "MIN_LINES", 2)
    flags = [str(pair), "--cpu", "--check"]
    assert tune.main(flags) == 2  # nothing is stored
    path = table_path(keep(*TREES).key)
    before = path.read_bytes()
    capfd.readouterr()
    assert tune.main(flags) == 0
    out = capfd.readouterr().out
    assert re.search(r"Stored: tree@tree_nodes=4, (still|\d+\.\d % slower than) the fastest", out)
    assert "tree@tree_nodes=8" in out
    assert "tree@tree_nodes=12" not in out
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("stored", "flags", "compared"),
    [
        # CTranslate2 is not installed any more.
        (["ctranslate2@float32", TREES[0], "AR"], "", TREES[0]),
        ([STEP_BY_STEP, TREES[0], "AR"], "--precision int8 --batch 8", "AR"),
    ],
)
def test_what_decodes_in_a_stored_modes_place_is_checked(
    stored: list[str],
    flags: str,
    compared: str,
    pair: Path,
    settings: Settings,
    keep: Keep,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuning, "MIN_LINES", 2)
    precision = "int8" if flags else "float32"
    keep(*stored, **describe(replace(settings, precision=precision), 1))
    assert tune.main([str(pair), "--cpu", "--check", "--max-len-b", "8", *flags.split()]) == 0
    assert f"Stored: {compared}, " in capfd.readouterr().out


@pytest.mark.parametrize(
    "flags", ["--beam 3", "--strategy fairseq", "--controller tree", "--sampling", "--beta 3"]
)
def test_what_follows_no_table_is_not_timed(flags: str, pair: Path, settings: Settings) -> None:
    assert tune.main([str(pair), *flags.split()]) == 2
    assert not cache_folder().joinpath("modes").exists()


def test_blank_lines_are_not_timed() -> None:
    text = [Line(i, "") for i in range(99)] + [Line(99, "w1")]
    assert {line.text for line in tuning.lines_to_try(text, 8)} == {"w1"}


def test_what_was_measured_is_shown_though_it_cannot_be_stored(
    pair: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuned_modes, "TREES", (4,))
    monkeypatch.setattr(tuning, "MIN_LINES", 2)
    monkeypatch.setattr(tune, "EXTRAS", {"int8": "no_such_library", "ctranslate2": "json"})
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    assert tune.main([str(pair), "--cpu", "--max-len-b", "8"]) == 1
    shown = capfd.readouterr()
    assert "| tree@tree_nodes=4,drafter_precision=int8 |" in shown.out
    assert "pip install 'specdec-plugins[int8]'" in shown.out
    assert os.devnull in shown.err.splitlines()[-1]


def test_ar_drafts_nothing_with_the_models_of_trees(settings: Settings) -> None:
    limited = replace(settings, limits=GenerationLimits(max_len_b=4))
    trial = tuning.Trial(limited, ["AR", TREES[0]], lambda _: None)
    trial.load([1])
    (translator,) = trial._translators.values()
    calls = []
    for mode in trial.modes:
        trial._pass(mode, 1, [Line(1, "w3 w4")])
        calls.append(translator.statistics.drafter_calls)
    assert calls[0] == 0 < calls[1]


@pytest.mark.parametrize("with_drafter", [True, False])
def test_int8_without_drafts_is_timed_by_what_will_decode_it(
    with_drafter: bool, settings: Settings
) -> None:
    """By the writer in small batches, and there against ONNX Runtime, too."""
    sizes = (1, MAX_ROWS, MAX_ROWS + 1)
    limits = GenerationLimits(max_len_b=4)
    path = settings.path if with_drafter else None
    int8 = replace(settings, path=path, precision="int8", limits=limits)
    modes = [mode for mode in list_modes(int8) if mode in ("AR", STEP_BY_STEP, TREES[0])]
    trial = tuning.Trial(int8, modes, lambda _: None)
    trial.load(sizes)
    for batch in sizes:
        expected = load_translator(parse_system("AR", replace(int8, batch=batch)))
        timed = trial._translators[trial._loaded("AR", batch)]
        assert type(timed.generator) is type(expected.generator)
        assert timed.engine == expected.engine
        other = trial._translators[trial._loaded(STEP_BY_STEP, batch)]
        assert other.engine == "onnxruntime"
        tried = {item.mode for item in trial.run(batch, [Line(1, "w3 w4")])}
        assert (STEP_BY_STEP in tried) == (batch <= MAX_ROWS)
        assert "AR" in tried
    assert STEP_BY_STEP not in list_modes(replace(int8, engine="onnxruntime"))
    assert STEP_BY_STEP not in list_modes(settings)


BACKEND, TREE = "ctranslate2@float32", {"controller": Tree(tree_nodes=4)}
INT8 = f"{TREES[0]},drafter_precision=int8"


@pytest.mark.parametrize(
    ("modes", "asked", "expected"),
    [
        ([TREES[0], "AR"], {}, TREE),
        (["AR", TREES[0]], {"drafter_named": False}, {"strategy": "AR"}),
        ([COPY, TREES[0]], {"drafter_named": False}, {"drafts": "copy"}),
        # A drafter that is named drafts, and so do drafts.
        ([COPY, "AR", TREES[0]], {}, TREE),
        ([COPY, "AR"], {"path": None, "drafts": "source"}, {}),
        ([COPY, "AR"], {"path": None, "drafts": __file__}, {}),
        ([TREES[0], "AR"], {"strategy": "AR"}, {"ar_backend": "ours"}),
        (["AR"], {"path": None}, {"strategy": "AR"}),
        (
            [STEP_BY_STEP, "AR"],
            {"precision": "int8", "path": None},
            {"strategy": "AR", "engine": "onnxruntime"},
        ),
        # A backend may be missing, or ruled out.
        ([BACKEND, TREES[0]], {}, TREE),
        ([BACKEND, TREES[0]], {"ar_backend": "ours"}, TREE),
        ([BACKEND, TREES[0]], {"target_prefix": "w1"}, TREE),
        # What is said, or would depend on what took how long, stays.
        ([TREES[0]], {"controller": Tree()}, {}),
        ([TREES[0]], {"controller": Auto(tree_nodes=12)}, {}),
        ([TREES[0]], {"rule": RelaxedRule(3, 1.0)}, {}),
        ([TREES[0]], {"strategy": "fairseq"}, {}),
        (["AR"], {"strategy": "AR", "ar_backend": "ours"}, {}),
        ([INT8], {"engine": "onnxruntime"}, {"drafter_precision": "int8", **TREE}),
        ([INT8], {"engine": "onnxruntime", "drafter_precision": "int8"}, TREE),
        ([INT8], {"engine": "onnxruntime", "drafter_precision": "float32"}, {}),
    ],
)
def test_what_is_left_open_follows_the_table(
    modes: list[str], asked: Any, expected: dict[str, object], settings: Settings, keep: Keep
) -> None:
    settings = replace(settings, **asked)
    keep(*modes, **describe(settings, 1))
    found = as_tuned(settings)
    assert {name: getattr(found, name) for name in expected} == expected
    assert expected or found == settings


def test_a_batch_size_that_was_not_tried_is_as_the_next_smaller(keep: Keep) -> None:
    table = keep(TREES[0], batch=8)
    table.batches[32] = [Timed("AR", [1.0])]
    chosen = [table.at(batch)[0].mode for batch in (1, 8, 31, 32, 99)]
    assert chosen == [TREES[0]] * 3 + ["AR"] * 2


@pytest.mark.parametrize(
    "mode",
    [
        *("nosuch", "", "drafter", "fairseq@beam=5", "fairseq@beam=1", "ctranslate2@int8"),
        *("tree@beta=20,tau=50", "AR@max_len_b=2", "tree@tree_nodes=4,target_prefix=w1"),
        *("tree@tree_nodes=-4", "tree@tree_nodes=5", "constant@sampling=true", "constant@drafts=w"),
    ],
)
def test_a_mode_that_is_never_measured_is_not_believed(
    mode: str, settings: Settings, keep: Keep, caplog: pytest.LogCaptureFixture
) -> None:
    """Also behind others that are: with a warning, the mode stays open."""
    for modes in ([mode, TREES[0]], [TREES[0], mode]):
        keep(*modes)
        caplog.clear()
        assert as_tuned(settings) == settings
        assert "run specdec-tune again" in caplog.text


@pytest.mark.parametrize(
    "batches",
    [
        {},
        {"0": [{"mode": "AR", "milliseconds": [1.0]}]},
        {"-1": [{"mode": "AR", "milliseconds": [1.0]}]},
        {"1": []},
        {"1": [{"mode": "AR", "milliseconds": []}]},
        {"1": [{"mode": "AR", "milliseconds": [-1.0]}]},
    ],
)
def test_impossible_figures_are_not_believed(
    batches: Any, settings: Settings, keep: Keep, caplog: pytest.LogCaptureFixture
) -> None:
    path = table_path(keep("AR").key)
    path.write_text(json.dumps({**json.loads(path.read_text()), "batches": batches}))
    assert as_tuned(settings) == settings
    assert "run specdec-tune again" in caplog.text


@pytest.mark.parametrize("kind", ["pipe", "folder", "another user's"])
def test_only_ordinary_files_of_this_user_are_read(
    kind: str,
    settings: Settings,
    keep: Keep,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = table_path(keep("AR").key)
    if kind == "another user's":
        monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    else:
        path.unlink()
        (os.mkfifo if kind == "pipe" else os.mkdir)(path)
    assert as_tuned(settings) == settings
    assert "run specdec-tune again" in caplog.text


def test_a_folder_that_may_not_be_looked_into_has_no_table(
    settings: Settings, keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(TREES[0])

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "stat", refuse)
    assert as_tuned(settings) == settings


def test_a_table_is_of_the_writer_or_of_onnx_runtime(settings: Settings) -> None:
    """Both are called AR in int8."""
    by_steps = replace(settings, engine="onnxruntime")
    assert describe(settings, 1) != describe(by_steps, 1)


def test_what_is_stale_damaged_or_of_others_is_not_believed(
    settings: Settings, keep: Keep, tmp_path: Path
) -> None:
    path = table_path(keep(TREES[0], versions={"torch": "0"}).key)
    assert as_tuned(settings) == settings
    for content in (b"", b"nothing", b'{"key": {}, "batches": {"1": []}}'):
        path.write_bytes(content)
        assert as_tuned(settings) == settings
    keep(TREES[0], threads=2)
    keep(TREES[0], processor="another")
    assert as_tuned(settings) == settings
    assert as_tuned(settings, threads=2).controller != settings.controller
    drafter = tmp_path / "drafter.pt"
    drafter.write_bytes(Path(str(settings.path)).read_bytes() + b"changed")
    for change in ({"path": str(drafter)}, {"precision": "float64"}, {"target_prefix": "w1"}):
        changed = replace(settings, **change)
        assert as_tuned(changed, threads=2) == changed
    alone = list_modes(replace(settings, path=None))
    assert alone[:2] == ["fairseq@beam=1", "AR"]
    assert not any(mode.startswith("tree") for mode in alone)
    trees = [x for x in list_modes(replace(settings, engine="onnxruntime")) if x[:4] == "tree"]
    assert trees == [f"tree@tree_nodes={n},drafter_precision=int8" for n in (4, 6, 8, 12, 16)]
