"""A pair made by one command, of a verifier that knows nothing of this plugin."""

from __future__ import annotations

import dataclasses
import json
import random
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from helpers.models.dummy_data import forget_trainings, listening
from helpers.models.stand_ins import STAND_INS
from helpers.models.trained import Trained, made_once
from helpers.runs.kills import UNFINISHED, Victim, fork

from specdec_plugins.checkpoints.loading import load_state
from specdec_plugins.cli import make_pair, train
from specdec_plugins.evaluation import tuning
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.output import JsonObject
from specdec_plugins.inference import Settings, load_translator, tuned_modes
from specdec_plugins.inference.pair_folder import pair_settings
from specdec_plugins.jobs.make_pair import training
from specdec_plugins.jobs.make_pair.job import PairJob
from specdec_plugins.jobs.make_pair.training import FIRST
from specdec_plugins.jobs.resume import resume_path
from specdec_plugins.machine import python_program
from specdec_plugins.tasks.recipes import with_recipe


@pytest.fixture(scope="module")
def verifier(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint beside its dictionaries and 150 segmented lines, ``sources.en``."""
    folder = tmp_path_factory.mktemp("verifier")
    for path in trained.data.glob("dict.*.txt"):
        shutil.copy(path, folder)
    state = torch.load(trained.verifier, weights_only=False)
    # Some of its sentences never end: to 200 words they would take most of the time.
    state["cfg"]["model"].max_target_positions = 32
    torch.save(state, folder / trained.verifier.name)
    draw = random.Random(3)
    lines = (
        " ".join(f"w{draw.randrange(20)}" for _ in range(draw.randint(2, 9))) for _ in range(150)
    )
    (folder / "sources.en").write_text("\n".join(lines) + "\n", "utf-8")
    return folder / trained.verifier.name


def make(
    verifier: Path, out: Path, flags: str = "", text: str | Path = "", budget: str = "--updates 6"
) -> int:
    files = f"{verifier} {text or verifier.with_name('sources.en')} {out}"
    return make_pair.main(f"{files} -s en -t de --cpu --quiet {budget} {flags}".split())


@pytest.fixture(scope="module")
def made(verifier: Path, session_folder: Path) -> Path:
    def make_one(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_CACHE_HOME", str(folder))
            patch.setattr(tuned_modes, "TREES", (4,))
            for name, value in (("MIN_LINES", 1), ("BATCHES", 1)):
                patch.setattr(tuning, name, value)
            assert make(verifier, folder / "out") == 0

    return made_once(session_folder / "pair", make_one) / "out"


@pytest.fixture
def out(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of ``made``, whose stages translate no text and measure no speed again."""
    shutil.copytree(made, tmp_path / "out")
    monkeypatch.setattr(make_pair, "run", lambda *_: "")
    return tmp_path / "out"


def done(out: Path) -> JsonObject:
    return json.loads((out / "work/done.json").read_bytes())


def products(out: Path) -> dict[str, bytes]:
    """The finished files that tell no times."""
    folders = (out / "pair").rglob("*.*"), (out / "work/text").rglob("*.*")
    paths = *folders[0], *folders[1], *out.glob("work/outputs.de")
    names = {path: str(path.relative_to(out)) for path in paths if path.is_file()}
    return {names[p]: p.read_bytes() for p in names if not p.name.endswith(UNFINISHED)}


def translations(pair: Path, sources: Path, strategy: str) -> list[str]:
    """The pair's translations of the first ten lines."""
    options = {"strategy": strategy, "precision": "float64", "beam": 1}
    translator = load_translator(Settings(**pair_settings(pair), **options))
    lines = sources.read_text("utf-8").splitlines()[:10]
    return [result.text for result in translator.translate(lines)]


@pytest.mark.parametrize("status", [0, -signal.SIGKILL])
def test_a_child_ends_when_it_is_done_or_its_parent_is(status: int) -> None:
    program = python_program(f"{training.CHILD}import time; time.sleep({60 if status else 0.3})")
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as child:
        assert child.stdin is not None
        assert child.stderr is not None
        if status:
            child.stdin.close()
        assert child.wait(30) == status
        assert child.stderr.read() == b""


def test_a_pair_that_translates_as_its_verifier(made: Path, verifier: Path) -> None:
    pair, sources = made / "pair", verifier.with_name("sources.en")
    assert translations(pair, sources, "AR") == translations(pair, sources, "specdec")
    given, stored = (load_state(path)["model"] for path in (verifier, pair / "verifier.pt"))
    assert all(torch.equal(stored[name], given[name]) for name in stored)
    exact = "In float64, the pair translates 0 of 20 held-out lines unlike fairseq's greedy search"
    assert exact in (made / "README.md").read_text("utf-8")
    flags = with_recipe(["bin", "--recipe", f"{made}/work/drafter.yaml", "--max-update", "20"])
    assert {"--total-num-update=20", "--total-up=20", f"--AR-path={pair}/verifier.pt"} <= {*flags}


def test_only_removed_or_changed_files_are_made_again(
    out: Path, made: Path, verifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specdec_plugins.jobs.make_pair.training.subprocess.Popen", None)
    assert make(verifier, out) == 0
    assert make(verifier, out, "--half") == 1
    assert products(out) == products(made)
    assert done(out) == done(made)
    for name in ("verifier.pt", "dict.de.txt", "example.en"):
        (out / "pair" / name).unlink()
    (out / "pair/drafter.pt").write_bytes(b"")
    (out / "README.md").unlink()
    assert make(verifier, out) == 0
    assert products(out) == products(made)


def train_here(
    job: PairJob, command: Sequence[object], log: Path, total: int | None = None
) -> None:
    """``training.watch`` without a process, which ``made`` has."""
    forget_trainings()
    with pytest.MonkeyPatch.context() as patch, listening() as logs:
        patch.setattr("sys.argv", ["specdec-train"])
        assert train.main([*map(str, command[1:])]) == 0
    (stats,) = logs.of("valid")
    numbers = {
        name: f"{stats[name]:g}" for name in ("valid_acceptance_length", "valid_num_updates")
    }
    with log.open("a", encoding="utf-8") as file:
        file.write(f"{json.dumps(numbers)}\n")


@pytest.mark.parametrize(
    "budget", ["--updates 8", pytest.param("--hours 1", marks=pytest.mark.slow)]
)
def test_a_trial_goes_on(
    budget: str, out: Path, made: Path, verifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Train on the pair that exists, and distil nothing again."""
    monkeypatch.setattr(training, "time_to_train", lambda *_: 1.0)
    if "--updates" in budget:  # the other needs the time of an update
        monkeypatch.setattr(training, "watch", train_here)
    assert make(verifier, out, budget=budget) == 0
    assert done(out)["distil"] == done(made)["distil"]
    points = sorted(dict(done(out)["train"]["points"]))
    assert points == [6, 8] if "--updates" in budget else points[:2] == [6, FIRST]
    assert training.trained(out / "work/training/checkpoint_last.pt")[0] == points[-1]


def test_interrupted_training_gives_the_best_drafter_so_far(
    out: Path, made: Path, verifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = {name: done(out)[name] for name in done(out).keys() - {"train", "export", "measure"}}
    (out / "work/done.json").write_text(json.dumps(left), "utf-8")
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
        assert make(verifier, out) == status
        assert products(out) == products(made)


def test_a_signal_other_than_ctrl_c_ends_training_at_once(
    out: Path, verifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sender does not wait for an export."""

    def terminated(*_: object) -> None:
        raise KeyboardInterrupt(signal.SIGTERM)

    monkeypatch.setattr(training, "watch", terminated)
    assert make(verifier, out, budget="--updates 8") == 128 + signal.SIGTERM


@pytest.mark.parametrize("changed", [False, True])
def test_another_way_to_distil_begins_anew(
    changed: bool, out: Path, made: Path, verifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By workers, on a GPU or by CTranslate2: half an output of another is no output."""
    left = {name: done(out)[name] for name in ("check", "segment")}
    (out / "work/done.json").write_text(json.dumps(left), "utf-8")
    outputs = out / "work/outputs.de"
    outputs.write_text("half\n")
    if changed:
        (out / "work/way.json").write_text("[]")

    def run(module: str, _: object) -> str:
        if module == "inference":
            assert changed != outputs.exists()
            assert changed != resume_path(str(outputs)).exists()
            shutil.copy(made / "work/outputs.de", outputs)
        return ""

    monkeypatch.setattr(make_pair, "run", run)
    assert make(verifier, out) == 0
    assert products(out) == products(made)


def test_a_refused_verifier_leaves_the_folder_to_another(
    verifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specdec_plugins.jobs.make_pair.stages.differing", lambda *_: 1)
    out, sources = tmp_path / "out", verifier.with_name("sources.en")
    flags = f"--dictionaries {verifier.parent}"
    for name in ("a.pt", "b.pt"):
        state = torch.load(verifier, weights_only=False)
        state["model"]["decoder.embed_tokens.weight"][5] += ord(name[0])
        torch.save(state, tmp_path / name)
        assert make(tmp_path / name, out, flags, sources) == 1
        assert not (out / "pair").exists()


def test_a_fault_before_there_is_a_pair_is_named(
    verifier: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_: PairJob) -> None:
        raise InferenceError("it cannot be copied")

    monkeypatch.setattr("specdec_plugins.jobs.make_pair.stages.copied", fail)
    assert make(verifier, tmp_path / "out") == 1
    assert "it cannot be copied" in capsys.readouterr().err


def test_a_check_that_fails_later_leaves_the_pair(
    out: Path, verifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specdec_plugins.jobs.make_pair.stages.differing", lambda *_: 1)
    (out / "pair/verifier.pt").unlink()
    assert make(verifier, out) == 1
    assert (out / "pair/drafter.pt").exists()


def test_the_best_drafter_is_the_pairs(
    out: Path, verifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the last one, which may have learnt the text by heart."""
    left = {name: done(out)[name] for name in done(out).keys() - {"train", "export", "measure"}}
    (out / "work/done.json").write_text(json.dumps(left), "utf-8")
    (out / "pair/drafter.pt").unlink()
    last, best = (out / f"work/training/checkpoint_{name}.pt" for name in ("last", "best"))
    state = torch.load(last, weights_only=False)
    learned = [n for n, tensor in state["model"].items() if tensor.is_floating_point()]
    for name in learned:
        state["model"][name] = state["model"][name] + 0.125
    torch.save(state, best)
    monkeypatch.setattr(training, "watch", lambda *_: None)
    assert make(verifier, out) == 0
    found, others = (load_state(path)["model"] for path in (out / "pair/drafter.pt", last))
    assert all(
        torch.equal(found[name], state["model"][name].half())
        for name in found
        if name in learned and found[name].numel() > 1
    )
    assert not torch.equal(found[learned[0]], others[learned[0]].half())


@pytest.mark.parametrize(
    ("flags", "text", "out", "named"),
    [
        ("--dictionaries {0}", "", "out", "{0}/dict.en.txt"),
        ("--dictionaries {0}/others", "", "out", "source dictionary has"),
        ("", "few", "out", "{0}/few"),
        ("", "others", "out", "SOURCES {0}/others: must be a file"),
        ("--bpe-codes none", "", "out", "--bpe-codes: is of a --tokenizer or --bpe that is not"),
        ("", "", "12:05/made", "':'"),
        ("", "", "en,de", "','"),
        ("", "", "x${{y}}", "'${{'"),
    ],
)
def test_bad_input_comes_before_work(
    flags: str,
    text: str,
    out: str,
    named: str,
    verifier: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "few").write_text("a line\n\n" * 99)
    (tmp_path / "others").mkdir()
    for path in verifier.parent.glob("dict.*.txt"):
        (tmp_path / "others" / path.name).write_text(f"{path.read_text('utf-8')}another 1\n")
    sources = tmp_path / text if text else ""
    with suppress(SystemExit):  # of the parser
        folder = tmp_path / out.format()
        assert make(verifier, folder, flags.format(tmp_path), sources) in (1, 2)
    assert named.format(tmp_path) in capsys.readouterr().err


@pytest.mark.parametrize("hours", ["inf", "nan", "-3", "0"])
def test_hours_that_no_clock_has(
    hours: str, verifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        make(verifier, tmp_path / "out", budget=f"--hours {hours}")
    assert f"{hours}: must be more than 0" in capsys.readouterr().err


def test_segmentation_that_lacks_its_codes_is_refused_before_a_folder_is_made(
    verifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make(verifier, tmp_path / "out", "--bpe subword_nmt") == 1
    assert "--bpe subword_nmt" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_source_and_target_of_one_name_are_refused(
    verifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files are named by languages: it would learn its sources."""
    assert make(verifier, tmp_path / "out", "-t en", budget="--updates 2") == 2
    assert "copy the target's dictionary to dict.en_out.txt" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_source_and_target_of_one_language(
    verifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Correction and simplification, as the refusal says: it learns the verifier's output."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tuned_modes, "TREES", (4,))
    for name in ("MIN_LINES", "BATCHES"):
        monkeypatch.setattr(tuning, name, 1)
    shutil.copy(verifier.with_name("dict.en.txt"), tmp_path)
    flags, out = f"--dictionaries {tmp_path}", tmp_path / "out"
    shutil.copy(verifier.with_name("dict.de.txt"), tmp_path / "dict.en_out.txt")
    assert make(verifier, out, f"{flags} -t en_out", budget="--updates 2") == 0
    text = out / "work/text"
    learnt = (text / "train.en_out").read_text("utf-8")
    assert learnt != (text / "train.en").read_text("utf-8")
    assert set(learnt.splitlines()) <= set((out / "work/outputs.en_out").read_text().splitlines())
    sources = verifier.with_name("sources.en")
    outputs = [translations(out / "pair", sources, strategy) for strategy in ("specdec", "fairseq")]
    assert outputs[0] == outputs[1]


@pytest.mark.slow
def test_killed_at_random_moments(
    made: Path, verifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file of the pair equals that of a run without kills."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(made.parent))

    def start(folder: Path) -> int:
        return fork(lambda: make(verifier, folder / "out"))

    def check(folder: Path, alone: Path) -> None:
        for name, content in products(folder / "out").items():
            assert not name.startswith("pair") or content == (alone / name).read_bytes(), name

    def finished(folder: Path, alone: Path) -> None:
        assert products(folder / "out") == products(alone)

    seconds = sum(record["seconds"] for record in done(made).values())
    Victim("make_pair", start, check, finished, made, seconds).kill(tmp_path / "killed", 20)


@pytest.mark.slow
def test_a_dry_run_says_how_long_it_takes_and_leaves_nothing(
    verifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make(verifier, tmp_path / "out", "--dry-run", budget="--updates 500") == 0
    assert not (tmp_path / "out").exists()
    said = capsys.readouterr().out
    for stage in ("distil 150 lines", "train by 500 updates", "export, measure"):
        assert re.search(rf"^{stage}: about \d+\.\d minutes here$", said, re.MULTILINE)
    assert "decoder_ffn_embed_dim: 32" in said


@pytest.mark.slow
def test_workers_say_the_same(
    made: Path, verifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(made.parent))
    assert make(verifier, tmp_path / "out", "--workers 2") == 0
    assert products(tmp_path / "out") == products(made)


@pytest.mark.slow
def test_of_a_multilingual_verifier(verifier: Path, tmp_path: Path) -> None:
    """The pair's folder stores the languages that it was made for."""
    kind = dataclasses.replace(STAND_INS["multilingual"], seed=12)  # it ends most sentences
    sources, pair = verifier.with_name("sources.en"), tmp_path / "out" / "pair"
    assert make(kind.save(tmp_path / "verifier.pt"), pair.parent, text=sources) == 0
    assert translations(pair, sources, "fairseq") == translations(pair, sources, "specdec")
