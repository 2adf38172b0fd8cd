"""``inference.py`` in this process, and the random pair that it runs with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ONE_LAYER, make_task, make_verifier, vary_output
from helpers.models.drafters import make_block, make_causal, save_checkpoint, save_pair

from specdec_plugins.cli import inference as script
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.inference import Settings, load_translator
from specdec_plugins.jobs.resume import Resume

SENTENCES = [
    *("w3 w4 w5 w6", "w7", "w1 w2 w3 w4 w5 w6 w7 w8 w9", "w19 w18 w17", "w0 w0 w0 w0 w0 w1"),
    *("w11 w12", "w5 w4 w3 w2 w1 w0 w9 w8 w7 w6 w5", "w14 w13 w16", "w2 w9"),
]
RunScript = Callable[..., int]


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a pair, with BPE codes and other models."""
    folder = save_pair(tmp_path_factory.mktemp("world"))
    merges = [f"w {digit}</w>" for digit in range(10)]
    (folder / "codes").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    languages = {"source_lang": "en", "target_lang": "de"}
    task = make_task()
    save_checkpoint(folder / "nameless.pt", vary_output(make_verifier(task, seed=13, **ONE_LAYER)))
    learned = {"encoder_learned_pos": True, "decoder_learned_pos": True, **ONE_LAYER}
    block = make_block(make_task(block_size=3), seed=6, **learned)
    save_checkpoint(folder / "block.pt", block, **languages, block_size=3)
    shared = make_causal(
        task, share_verifier_encoder=True, verifier_features=True, seed=7, **ONE_LAYER
    )
    save_checkpoint(folder / "shared.pt", shared, **languages)
    wide = make_verifier(task, decoder_embed_dim=32, encoder_embed_dim=32, **ONE_LAYER)
    save_checkpoint(folder / "wide.pt", wide, **languages)
    (folder / "in.txt").write_text("\n".join(SENTENCES) + "\n")
    return folder


@pytest.fixture
def run(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunScript:
    """``run(flag, …)`` in this process and the world; flags given replace the usual ones."""
    monkeypatch.chdir(world)

    def run_script(*flags: str, data: Path = world, **usual: str | None) -> int:
        flagged = {
            "--path": str(world / "drafter.pt"),
            "--AR-path": str(world / "verifier.pt"),
            "--input-path": str(world / "in.txt"),
            "--output-path": str(tmp_path / "out.txt"),
            "--max-len-b": "9",
            **{f"--{name.replace('_', '-')}": value for name, value in usual.items()},
        }
        pairs = (pair for pair in flagged.items() if pair[1] is not None)
        words = [word for pair in pairs for word in pair]
        try:
            return int(script.main([str(data), "--segmented", *words, *flags]))
        except SystemExit as stop:
            return int(stop.code or 0)

    return run_script


@pytest.fixture(scope="session")
def greedy(world: Path) -> list[str]:
    """The verifier's translations of ``SENTENCES``."""
    translator = load_translator(make_settings(world, strategy="AR"))
    return [result.text for result in translator.translate(SENTENCES)]


@pytest.fixture
def unfinished(run: RunScript, monkeypatch: pytest.MonkeyPatch) -> RunScript:
    """``run``, killed at the very end."""

    def run_and_die(*flags: str, **usual: str | None) -> int:
        with monkeypatch.context() as patch:
            patch.setattr(Resume, "finish", lambda self: None)
            return run(*flags, **usual)

    return run_and_die


def make_settings(world: Path, **settings: Any) -> Settings:
    files = {"path": str(world / "drafter.pt"), "ar_path": str(world / "verifier.pt")}
    usual = {**files, "limits": GenerationLimits(max_len_b=9)}
    return Settings(data=str(world), **{**usual, **settings})


def lines_of(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    assert text == "" or text.endswith("\n")
    return text.split("\n")[:-1]


def one_error(capfd: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr."""
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err
