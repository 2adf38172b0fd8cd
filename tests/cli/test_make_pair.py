"""A pair made by one command, of a verifier that knows nothing of this plugin."""

from __future__ import annotations

import dataclasses
import json
import random
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from kills import UNFINISHED, Victim, fork
from stand_ins import STAND_INS
from trained import made_once

from specdec_plugins.checkpoints.loading import load_state
from specdec_plugins.cli import make_pair
from specdec_plugins.inference import Settings, load_translator
from specdec_plugins.inference.pair_folder import pair_settings
from specdec_plugins.jobs.make_pair import training
from specdec_plugins.jobs.make_pair.training import FIRST
from specdec_plugins.machine import python_program
from specdec_plugins.tasks.recipes import with_recipe

UPDATES = ("--updates", "6")


@pytest.fixture(scope="module")
def verifier(trained: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint beside its dictionaries; it reads segmented text."""
    folder = tmp_path_factory.mktemp("verifier")
    for path in (trained.verifier, *trained.data.glob("dict.*.txt")):
        shutil.copy(path, folder)
    return folder / trained.verifier.name


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "sources.en"
    draw = random.Random(3)
    lines = (
        " ".join(f"w{draw.randrange(20)}" for _ in range(draw.randint(2, 9))) for _ in range(150)
    )
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def make(verifier: Path, sources: Path, out: Path, *flags: str) -> int:
    languages = ("-s", "en", "-t", "de", "--cpu", "--quiet")
    return make_pair.main([str(verifier), str(sources), str(out), *languages, *flags])


@pytest.fixture(scope="module")
def made(verifier: Path, sources: Path, session_folder: Path) -> Path:
    def make_one(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_CACHE_HOME", str(folder))
            patch.setattr("specdec_plugins.evaluation.tuning.TREES", (4,))
            assert make(verifier, sources, folder / "out", *UPDATES) == 0

    return made_once(session_folder / "pair", make_one) / "out"


@pytest.fixture
def out(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what was made, whose stages translate no text and measure no speed again."""
    shutil.copytree(made, tmp_path / "out")
    monkeypatch.setattr(make_pair, "run", lambda *_: "")
    return tmp_path / "out"


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*.*")
        if path.is_file()
    }


def products(out: Path) -> dict[str, bytes]:
    """What does not tell times."""
    outputs = {"work/outputs.de": (out / "work/outputs.de").read_bytes()}
    return contents(out / "pair") | contents(out / "work/text") | outputs


def translations(pair: Path, sources: Path, strategy: str) -> list[str]:
    """By a pair, of the first ten lines."""
    given = {"strategy": strategy, "precision": "float64", "beam": 1}
    translator = load_translator(Settings(**pair_settings(pair), **given))
    lines = sources.read_text("utf-8").splitlines()[:10]
    return [result.text for result in translator.translate(lines)]


@pytest.mark.parametrize("status", [0, 1])
def test_a_child_ends_when_it_is_done_or_its_parent_is(status: int) -> None:
    program = python_program(f"{training.CHILD}import sys, time; time.sleep({60 * status or 0.3})")
    with subprocess.Popen(program, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stderr is not None
        if status:
            child.stdin.close()
        assert child.wait(30) == status
        assert child.stderr.read() == b""


def test_a_pair_that_translates_as_its_verifier(made: Path, verifier: Path, sources: Path) -> None:
    pair = made / "pair"
    assert translations(pair, sources, "AR") == translations(pair, sources, "specdec")
    given, stored = (load_state(path)["model"] for path in (verifier, pair / "verifier.pt"))
    assert all(torch.equal(stored[name], given[name]) for name in stored)
    card = (made / "README.md").read_text("utf-8")
    exact = "Of 20 held-out lines, the pair translates 0 differently from stock fairseq (beam 1)"
    for text in ("150 lines of sources.en", "| 6 |", "AR by our loop", exact):
        assert text in card
    flags = with_recipe(["bin", "--recipe", f"{made}/work/drafter.yaml", "--max-update", "20"])
    assert {"--total-num-update=20", "--total-up=20", f"--AR-path={pair}/verifier.pt"} <= {*flags}


def test_what_is_made_is_made_again_only_if_it_was_removed_or_changed(
    out: Path, made: Path, verifier: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specdec_plugins.jobs.make_pair.training.subprocess.Popen", None)
    done = json.loads((made / "work/done.json").read_bytes())
    assert make(verifier, sources, out, *UPDATES) == 0
    assert make(verifier, sources, out, *UPDATES, "--half") == 1
    assert products(out) == products(made)
    assert json.loads((out / "work/done.json").read_bytes()) == done
    for name in ("verifier.pt", "dict.de.txt", "example.en"):
        (out / "pair" / name).unlink()
    (out / "pair/drafter.pt").write_bytes(b"")
    (out / "README.md").unlink()
    assert make(verifier, sources, out, *UPDATES) == 0
    assert products(out) == products(made)


@pytest.mark.parametrize(
    "budget", [("--updates", "8"), pytest.param(("--hours", "1"), marks=pytest.mark.slow)]
)
def test_a_trial_goes_on(
    budget: tuple[str, str],
    out: Path,
    made: Path,
    verifier: Path,
    sources: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It trains on what is there, and distils nothing again."""
    monkeypatch.setattr(training, "time_to_train", lambda *_: 1.0)
    assert make(verifier, sources, out, *budget) == 0
    before, after = (json.loads((p / "work/done.json").read_bytes()) for p in (made, out))
    assert after["distil"] == before["distil"]
    points = sorted(dict(after["train"]["points"]))
    assert points == [6, 8] if budget[0] == "--updates" else points[:2] == [6, FIRST]
    assert training.trained(out / "work/training/checkpoint_last.pt")[0] == points[-1]


def test_interrupted_training_gives_the_best_drafter_so_far(
    out: Path,
    made: Path,
    verifier: Path,
    sources: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = json.loads((out / "work/done.json").read_bytes())
    for name in ("train", "export", "measure"):
        del done[name]
    (out / "work/done.json").write_text(json.dumps(done), "utf-8")
    trained = shutil.move(out / "work/training", tmp_path / "trained")
    (out / "pair/drafter.pt").unlink()

    def interrupted(*_: object) -> None:
        (out / "work/training").mkdir()
        shutil.copy(trained / "checkpoint_best.pt", out / "work/training")
        raise KeyboardInterrupt

    def goes_on(*_: object) -> None:
        shutil.copytree(trained, out / "work/training", dirs_exist_ok=True)

    for watch, status in ((interrupted, 130), (goes_on, 0)):
        monkeypatch.setattr(training, "watch", watch)
        assert make(verifier, sources, out, *UPDATES) == status
        assert products(out) == products(made)
        card = (out / "README.md").read_text("utf-8")
        assert ("Training was interrupted" in card) == (status == 130)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"--dictionaries": "{0}"}, "{0}/dict.en.txt: no such file"),
        ({"--dictionaries": "{0}/others"}, "size mismatch for"),
        ({"SOURCES": "{0}/few"}, "SOURCES {0}/few: has 99 lines with words"),
        ({"OUT": "12:05/made"}, "':'"),
        ({"OUT": "en,de"}, "','"),
        ({"OUT": "x${{y}}"}, "'${{'"),
    ],
)
def test_what_cannot_be_is_told_at_once(
    given: dict[str, str],
    message: str,
    verifier: Path,
    sources: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "few").write_text("a line\n\n" * 99)
    (tmp_path / "others").mkdir()
    for path in verifier.parent.glob("dict.*.txt"):
        (tmp_path / "others" / path.name).write_text(f"{path.read_text('utf-8')}another 1\n")
    given = {name: value.format(tmp_path) for name, value in given.items()}
    out = given.pop("OUT", f"{tmp_path}/out")
    text = given.pop("SOURCES", str(sources))
    flags = [word for pair in given.items() for word in pair]
    with suppress(SystemExit):  # of the parser
        assert make(verifier, Path(text), Path(out), *UPDATES, *flags) == 1
    assert message.format(tmp_path) in capsys.readouterr().err


@pytest.mark.slow
def test_killed_at_random_moments(
    made: Path, verifier: Path, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file of the pair is as it is without, to the byte."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(made.parent))
    done = json.loads((made / "work/done.json").read_bytes())
    seconds = sum(record["seconds"] for record in done.values())

    def start(folder: Path) -> int:
        return fork(lambda: make(verifier, sources, folder / "out", *UPDATES))

    def check(folder: Path, alone: Path) -> None:
        for name, content in contents(folder / "out/pair").items():
            if not name.endswith(UNFINISHED):
                assert content == (alone / "pair" / name).read_bytes(), name

    def finished(folder: Path, alone: Path) -> None:
        left = products(folder / "out")
        assert {n: left[n] for n in left if not n.endswith(UNFINISHED)} == products(alone)

    victim = Victim("make_pair", start, check, finished, made, seconds)
    victim.kill(tmp_path / "killed", 20)


@pytest.mark.slow
def test_workers_say_the_same(
    made: Path, verifier: Path, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(made.parent))
    assert make(verifier, sources, tmp_path / "out", *UPDATES, "--workers", "2") == 0
    assert products(tmp_path / "out") == products(made)


@pytest.mark.slow
def test_a_dry_run_says_all_and_leaves_nothing(
    verifier: Path, sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make(verifier, sources, tmp_path / "out", "--hours", "2", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "150 lines of text" in said
    assert re.search(r"^all: about [12]\.\d\d hours", said, re.M)
    assert "verifier_features: true" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_of_a_multilingual_verifier(sources: Path, tmp_path: Path) -> None:
    """Its folder needs no languages, which are those of its making."""
    kind = dataclasses.replace(STAND_INS["multilingual"], seed=12)  # it ends most sentences
    verifier = kind.save(tmp_path / "verifier.pt")
    assert make(verifier, sources, tmp_path / "out", *UPDATES) == 0
    pair = tmp_path / "out" / "pair"
    assert translations(pair, sources, "fairseq") == translations(pair, sources, "specdec")
