"""Commands that take a verifier take a folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.models.folders import FAMILIES, LINES, make_marian, rewrite, write
from helpers.runs.kills import ForkedPython

from specdec_plugins.cli import check, evaluate, inference, translate_corpus, tune
from specdec_plugins.evaluation import tuning, worker
from specdec_plugins.evaluation.experiment import read_runs
from specdec_plugins.inference import Settings, load_translator
from specdec_plugins.inference.flags import TranslationParser, make_settings
from specdec_plugins.inference.pair_folder import verifier_settings
from specdec_plugins.inference.report import describe_settings
from specdec_plugins.inference.tuned_modes import describe, load_table
from specdec_plugins.jobs.make_pair import stages
from specdec_plugins.jobs.make_pair.job import PairJob
from specdec_plugins.verifiers.families import family_of
from specdec_plugins.verifiers.reference import greedy_output


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("marian")
    make_marian(folder)
    return folder


@pytest.fixture(scope="module")
def penalised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("penalised")
    make_marian(folder)
    write(folder / "generation_config.json", {"max_length": 30, "repetition_penalty": 1.7})
    return folder


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    path.write_text("\n".join(LINES) + "\n", "utf-8")
    return path


def flags_of(*argv: str) -> Settings:
    return make_settings(TranslationParser(None, argv).parse(argv))


def texts(settings: Settings) -> list[str]:
    return [translation.text for translation in load_translator(settings).translate(LINES)]


def test_limits_are_the_folders_but_for_flags(marian: Path) -> None:
    limits = flags_of(str(marian)).limits
    assert (limits.max_len_b, limits.min_len) == (28, 0)
    assert limits == Settings.of_model(marian).limits
    given = flags_of(str(marian), "--max-len-b", "200", "--min-len", "1").limits
    assert (given.max_len_b, given.min_len) == (200, 1)
    assert flags_of("data", "--AR-path", str(marian)).limits == limits


def test_translate(marian: Path, text: Path, tmp_path: Path) -> None:
    output = tmp_path / "output"
    files = ["--input-path", str(text), "--output-path", str(output), "--quiet"]
    plain = ["--engine", "eager", "--no-progress-bar"]
    inference.main.__wrapped__([str(marian), *files, *plain, "--strategy", "AR"])
    lines = output.read_text("utf-8").splitlines()
    assert len(lines) == len(LINES)
    assert all(lines)
    # The dictionaries are the folder's, wherever the verifier is named.
    named = [str(marian), "--AR-path", str(marian), *files, *plain, "--drafts", "source"]
    inference.main.__wrapped__(named)
    assert output.read_text("utf-8").splitlines() == lines


def test_ctranslate2(marian: Path) -> None:
    """It takes the bias of the output, and swish."""
    pytest.importorskip("ctranslate2", reason="the extra [ctranslate2] is not installed")
    plain = Settings.of_model(marian, strategy="AR")
    translator = load_translator(replace(plain, ar_backend="ctranslate2"))
    assert translator.not_by_ctranslate2 is None
    assert texts(replace(plain, ar_backend="ctranslate2")) == texts(plain)


def checked(kind: str, folder: Path, lines: int, **generation: object) -> int:
    """Make a folder, and return the status of its check."""
    make, languages = FAMILIES[kind]
    make(folder)
    rewrite(folder / "generation_config.json", **generation)
    flags = [word for n, v in languages.items() for word in (f"--{n.replace('_', '-')}", v)]
    argv = [str(folder), *flags, "--lines", str(lines), "--systems", "AR@float64,engine=eager"]
    return check.main.__wrapped__(argv)


@pytest.mark.parametrize("kind", FAMILIES)
def test_check(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(kind, tmp_path, 8, max_new_tokens=3) == 0
    assert "search, in float64: 0 of 8 lines; in float32 it takes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "penalty", "status"), [("marian", 1.0, 1), ("marian", 1.7, 1), ("m2m", 1.7, 0)]
)
def test_check_finds_other_words(
    kind: str,
    penalty: float,
    status: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fault, but where transformers' penalty counts what comes before an output."""

    def other(*arguments: Any) -> tuple[list[list[int]], float]:
        outputs, seconds = greedy_output(*arguments)
        return [[*output[:-1], 4] for output in outputs], seconds

    monkeypatch.setattr(check, "greedy_output", other)
    assert checked(kind, tmp_path, 3, max_length=30, repetition_penalty=penalty) == status
    shown = capsys.readouterr().out
    assert "in float64: 3 of 3 lines" in shown
    assert ("penalty counts the </s>" in shown) == (status == 0)


def test_check_has_the_folders_penalty(penalised: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = [str(penalised), "--lines", "3", "--systems", "AR@float64,engine=eager"]
    assert check.main.__wrapped__(argv) == 0
    monkeypatch.setattr(check, "limits_of", lambda _: {})
    assert check.main.__wrapped__(argv) == 1


#: Systems that specdec-evaluate compares without a drafter.
OURS = ["AR", "constant"]


def test_evaluate(
    marian: Path, penalised: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default with drafts that need no training; fairseq's search has no penalty."""
    monkeypatch.setattr(worker.subprocess, "Popen", ForkedPython)
    plain = "--engine eager --rounds 1 --warmup 0 --no-plots --quiet"
    for folder, systems in ((marian, ["fairseq@beam=1", *OURS]), (penalised, OURS)):
        out = tmp_path / folder.name
        evaluate.main.__wrapped__(
            f"{folder} --input-path {text} --output-path {out} {plain}".split()
        )
        outputs = {run.system: run.outputs for run in read_runs(out / "runs.jsonl")}
        assert sorted(outputs) == sorted(systems)
        assert outputs["constant"] == outputs["AR"]


def test_tune(marian: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime", reason="the extra [int8] is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tuning, "MIN_LINES", 2)
    tune.main.__wrapped__([str(marian), "--input-path", str(text), "--cpu"])
    modes = {x.mode for x in load_table(describe(flags_of(str(marian), "--cpu"), 1)).at(1)}
    assert {"AR", "constant@drafts=copy,drafter_precision=int8"} <= modes


def test_corpus(marian: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its command, with a worker in this process."""
    pytest.importorskip("ray", reason="Ray is not installed (extra [ray])")
    from specdec_plugins.jobs import pool

    monkeypatch.setattr(
        pool,
        "translate_shards",
        lambda shards, settings, seed, _, threads: map(
            pool.ShardTranslator(settings, seed, threads).translate, shards
        ),
    )
    flags = f"{marian} --input-path {text} --output-path {tmp_path}/out --shard-lines 4 --quiet"
    translate_corpus.main.__wrapped__(flags.split())
    outputs = tmp_path / "out" / "text"
    assert outputs.read_text("utf-8").splitlines() == texts(Settings.of_model(marian))


def test_another_file_is_another_model(marian: Path) -> None:
    settings = Settings.of_model(marian)
    before = describe_settings(settings)
    (marian / "notes.txt").write_text("nothing that is read", "utf-8")
    assert describe_settings(settings) == before
    (marian / "added_tokens.json").write_text("{}", "utf-8")
    assert describe_settings(settings)["models"] != before["models"]
    (marian / "added_tokens.json").unlink()


@pytest.mark.parametrize("kind", ["marian", "bart", "mbart"])
def test_a_pair_is_made_of_a_folder(kind: str, tmp_path: Path) -> None:
    make, languages = FAMILIES[kind]
    folder = tmp_path / kind
    make(folder)
    sources = tmp_path / "sources"
    sources.write_text("\n".join(LINES) + "\n", "utf-8")
    languages = languages or {"source_lang": "en", "target_lang": "de"}
    settings = Settings(**{**verifier_settings(folder, None), "strategy": "AR", **languages})
    job = PairJob(settings, sources, tmp_path / "out", lambda *_: "", quiet=True)
    facts = stages.check(job, {})
    assert "differ in 0 of 6 lines" in facts["checked"]
    texts = [name for name in family_of(folder).segmentation.values() if (folder / name).is_file()]
    assert {path.name for path in facts["files"]} == {
        *(f"dict.{language}.txt" for language in languages.values()),
        *("segmentation.json", "verifier.pt", *texts),
    }
