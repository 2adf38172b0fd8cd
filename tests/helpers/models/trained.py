"""A tiny pair and an acceptance head for it, trained once for all tests and their processes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock

from helpers.models.dummy_data import SIZES, make_data, run_train, train_verifier
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.inference import Settings, load_translator

DRAFTER = (
    f"--task translation_specdec --arch block_causal --block-size 4 --criterion glat_loss {SIZES} "
    "--share-verifier-encoder --verifier-features --verifier-embed-dim 16 --previous-token-head "
    "--verifier-labels --blocks-per-sentence 3 --slot-decay 3 "
    "--best-checkpoint-metric acceptance_length --maximize-best-checkpoint-metric"
)
"""A drafter with all of its verifier."""


def made_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """A folder filled by whichever of the session's processes comes first; read it only."""
    with FileLock(f"{folder}.lock"):
        if not (folder / "made").exists():
            shutil.rmtree(folder, ignore_errors=True)  # where somebody failed
            folder.mkdir()
            make(folder)
            (folder / "made").touch()
    return folder


def train(folder: Path) -> None:
    """Train all of :class:`Trained`."""
    trained = Trained(folder)
    data = make_data(folder)
    digits = range(10)
    merges = [f"w {d}</w>" for d in digits] + ["w 1"] + [f"w1 {d}</w>" for d in digits]
    (data / "codes").write_text("\n".join(["#version: 0.2", *merges]) + "\n", "utf-8")
    # For long enough to say different things about different sentences.
    whole = "--max-epoch {0} --save-interval {0} --validate-interval {0}"
    train_verifier(data, trained.verifier.parent, whole.format(15))
    run_train(data, trained.drafter.parent, f"{trained.drafter_flags} {whole.format(4)}")
    flags = f"{trained.head_flags} {trained.rule} --max-epoch 6"
    run_train(data, trained.head.parent, flags).save(trained.head.parent)


class Trained:
    """The files of the pair, how it was trained, and what inference says with it."""

    rule = "--beta 3 --tau 2.0"
    """The acceptance rule of the head."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "bin"
        self.verifier, self.drafter, self.head = (
            folder / name / "checkpoint_last.pt" for name in ("verifier", "drafter", "head")
        )
        self.drafter_flags = f"{DRAFTER} --AR-path {self.verifier}"
        self.head_flags = (
            f"--task translation_specdec --AR-path {self.verifier} --arch acceptance_head "
            f"--drafter {self.drafter} --head-layers 2 --criterion acceptance_loss "
            "--blocks-per-sentence 2"
        )

    @property
    def source(self) -> list[str]:
        """The sentences of the valid set."""
        return (self.folder / "valid.en").read_text("utf-8").splitlines()

    @property
    def reference(self) -> list[str]:
        return (self.folder / "valid.de").read_text("utf-8").splitlines()

    def translate(self, **settings: Any) -> list[str]:
        """Return translations by this pair, unless ``settings`` name other files."""
        given = {
            "path": str(self.drafter),
            "ar_path": str(self.verifier),
            "source_lang": "en",
            "target_lang": "de",
            "limits": GenerationLimits(max_len_b=12),
            "batch": 4,
            **settings,
        }
        translator = load_translator(Settings(str(self.data), **given))
        return [translation.text for translation in translator.translate(self.source)]
