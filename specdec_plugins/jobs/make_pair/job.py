"""The making of a pair: its settings, and the files of ``OUT``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from specdec_plugins.files.command import tell
from specdec_plugins.files.output import JsonObject, file_digest
from specdec_plugins.inference import Settings
from specdec_plugins.inference.pair_folder import DRAFTER, VERIFIER
from specdec_plugins.inference.report import describe_settings
from specdec_plugins.inference.settings import PLAIN

#: Facts about each finished stage.
Done = dict[str, JsonObject]


class Layout:
    """The files of ``OUT``."""

    def __init__(self, out: Path, languages: tuple[str, str]) -> None:
        source, target = languages
        self.pair = out / "pair"
        self.work = out / "work"
        self.verifier = self.pair / VERIFIER
        self.drafter = self.pair / DRAFTER
        self.example = self.pair / f"example.{source}"
        #: Held-out lines, raw.
        self.valid_text = self.work / f"valid.{source}"
        #: All lines, segmented, the held-out ones first.
        self.sources = self.work / f"sources.{source}"
        #: The verifier's output for each line.
        self.outputs = self.work / f"outputs.{target}"
        #: The way in which they are made.
        self.way = self.work / "way.json"
        #: The report of distilling.
        self.distilling = self.work / "distilling.json"
        self.text = self.work / "text"
        self.bin = self.work / "bin"
        self.learned = self.text / f"train.{target}"
        self.recipe = self.work / "drafter.yaml"
        self.log = self.work / "training.log"
        self.training = self.work / "training"
        self.done = self.work / "done.json"
        self.card = out / "README.md"


@dataclass(frozen=True)
class PairJob:
    """The making of a pair."""

    #: Plain AR by the checkpoint.
    verifier: Settings
    #: Text of the source language, a sentence a line.
    sources: Path
    out: Path
    #: Runs a module of ``cli`` with flags in this process, and returns its standard output.
    run: Callable[[str, Sequence[object]], str]
    #: Hours of all stages together; None: as many as ``updates`` take.
    hours: float | None = None
    #: Updates of the drafter's training.
    updates: int | None = None
    #: Store the verifier in float16, not in its own precision.
    half: bool = False
    #: Processes that distil, by Ray; None: this process distils.
    workers: int | None = None
    quiet: bool = False

    @cached_property
    def layout(self) -> Layout:
        return Layout(self.out, self.languages)

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target."""
        return str(self.verifier.source_lang), str(self.verifier.target_lang)

    @property
    def on_cpu(self) -> bool:
        return self.verifier.device == "cpu"

    @property
    def flags(self) -> list[object]:
        """Flags of the commands that it runs."""
        flags: list[object] = []
        if self.on_cpu:
            flags.append("--cpu")
        if self.quiet:
            flags.append("--no-progress-bar")
        return flags

    def settings(self, **changes: object) -> Settings:
        """Return settings of the pair's verifier, plain AR unless ``changes`` say otherwise."""
        alone = {"path": None, "strategy": "AR", **PLAIN, **changes}
        return Settings.of_model(self.layout.pair, **alone)

    def describe(self) -> JsonObject:
        """Return all that the pair depends on but the machine and the length of its training."""
        about = describe_settings(self.verifier)
        del about["settings"]["device"]
        return {**about, "half": self.half, "SOURCES": file_digest(self.sources)}

    def say(self, line: str) -> None:
        if not self.quiet:
            tell(line)
