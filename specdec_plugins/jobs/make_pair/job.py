"""What a pair is made of, and where everything of its making lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import specdec_plugins
from specdec_plugins.decoding.acceptance import AcceptanceRule, StrictRule
from specdec_plugins.files.output import JsonObject, file_digest
from specdec_plugins.inference.pair_folder import VERIFIER, files_in_folder


@dataclass(frozen=True)
class PairJob:
    """The making of a pair, as it was asked for."""

    verifier: Path
    """The checkpoint of a Transformer."""
    sources: Path
    """Text of the source language, a sentence a line."""
    out: Path
    """The folder to make."""
    dictionaries: Path
    """The folder of the verifier's dictionaries."""
    languages: tuple[str, str]
    """Source and target."""
    tokenizer: str | None = None
    bpe: str | None = None
    encoder_options: Mapping[str, object] = field(default_factory=dict)
    """Options of both under fairseq's names."""
    hours: float | None = None
    """Of all stages together; or ``updates``."""
    updates: int | None = None
    """Of the drafter's training."""
    arch: str = "block_causal"
    rule: AcceptanceRule = field(default_factory=StrictRule)
    heads: bool = False
    half: bool = False
    """Store the verifier in float16, not in its own precision."""
    as_transformer: bool = False
    """Fields of the verifier that fairseq does not know change nothing of the network."""
    workers: int | None = None
    """Processes that distil, by Ray; None: this one does."""
    device: str = "cpu"

    @cached_property
    def layout(self) -> Layout:
        """The files of ``out``."""
        return Layout(self.out, self.languages)

    @property
    def rule_flags(self) -> tuple[str, ...]:
        """The flags of the acceptance rule, for commands that judge drafts."""
        return tuple(f"--{name}={value}" for name, value in self.rule_options.items())

    @property
    def rule_options(self) -> dict[str, Any]:
        """The options of the acceptance rule; none of the strict one, which is the default."""
        return {} if self.rule == StrictRule() else self.rule.values

    @property
    def device_flags(self) -> tuple[str, ...]:
        return ("--cpu",) if self.device == "cpu" else ()

    @property
    def encoder_files(self) -> dict[str, Path]:
        """Files of tokenizer and BPE, by fairseq's option: those given, or those that lie beside
        the dictionaries."""
        named = {name: Path(str(value)) for name, value in self.encoder_options.items() if value}
        given = {name: path for name, path in named.items() if path.is_file()}
        beside = files_in_folder(str(self.dictionaries)) if self.bpe else {}
        return {**{name: Path(path) for name, path in beside.items()}, **given}

    def describe(self) -> JsonObject:
        """All that the pair depends on, but for the machine.

        Raises:
            InferenceError: a file cannot be read.
        """
        dictionaries = [self.dictionaries / f"dict.{name}.txt" for name in self.languages]
        return {
            "specdec_plugins": specdec_plugins.__version__,
            "VERIFIER": file_digest(self.verifier),
            "SOURCES": file_digest(self.sources),
            "dictionaries": {path.name: file_digest(path) for path in dictionaries},
            "languages": list(self.languages),
            "tokenizer": self.tokenizer,
            "bpe": self.bpe,
            "segmentation": {
                name: file_digest(path) for name, path in sorted(self.encoder_files.items())
            },
            "hours": self.hours,
            "updates": self.updates,
            "arch": self.arch,
            "rule": self.rule.values,
            "heads": self.heads,
            "half": self.half,
        }


class Layout:
    """The files of ``OUT``."""

    def __init__(self, out: Path, languages: tuple[str, str]) -> None:
        self.out = out
        source, target = languages
        self.pair, self.work = out / "pair", out / "work"
        self.verifier = self.pair / VERIFIER
        self.example = self.pair / f"example.{source}"
        self.valid_text = self.work / f"valid.{source}"
        """Held-out lines, raw."""
        self.sources = self.work / f"sources.{source}"
        """All lines, segmented: those that are held out first."""
        self.outputs = self.work / f"outputs.{target}"
        """What the verifier says to each."""
        self.distilling = self.work / "distilling.json"
        """How long that took."""
        self.shards = self.work / "shards"
        self.text, self.bin = self.work / "text", self.work / "bin"
        self.recipe, self.head_recipe = (self.work / name for name in ("drafter.yaml", "head.yaml"))
        self.training = self.work / "training"
        self.card, self.curve = out / "README.md", out / "curve"

    def log(self, name: str) -> Path:
        """What the command of a stage said."""
        return self.work / f"{name}.log"
