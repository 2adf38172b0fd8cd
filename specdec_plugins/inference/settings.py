"""What a run of inference is asked to do, checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from specdec_plugins.decoding.acceptance import AcceptanceRule, StrictRule
from specdec_plugins.decoding.controllers.base import Controller
from specdec_plugins.decoding.controllers.simple import Auto
from specdec_plugins.decoding.engine_choice import (
    ENGINE,
    OF_DRAFTER,
    PRECISION,
    check_drafter,
    check_engine,
)
from specdec_plugins.decoding.limits import REPETITION_PENALTY, GenerationLimits
from specdec_plugins.decoding.stock_search import check_stock_search
from specdec_plugins.files.output import JsonObject
from specdec_plugins.inference.pair_folder import pair_settings

STRATEGIES = ("specdec", "AR", "fairseq", "drafter")
TRACED = ("specdec", "AR")
CTRANSLATE2 = "ctranslate2"
AR_BACKENDS = ("auto", "ours", CTRANSLATE2)

PLAIN: JsonObject = {
    "device": "cpu",
    "engine": "eager",
    "precision": "float32",
    "drafter_precision": None,
}
"""Settings by which models are loaded quickly, to look at them."""

TYPED: tuple[tuple[str, type, str], ...] = (
    ("controller", Controller, "Tree(tree_nodes=8)"),
    ("rule", AcceptanceRule, "RelaxedRule(beta=3, tau=1.0)"),
    ("limits", GenerationLimits, "GenerationLimits(max_len_b=100)"),
)
"""Settings that are objects, which somebody may give by a name."""


@dataclass(frozen=True)
class Settings:
    """A run of inference; messages name the flags of ``scripts/inference.py``."""

    data: str
    """The folder of ``dict.{source}.txt`` and ``dict.{target}.txt``; also of the BPE ``codes``."""
    ar_path: str | None = None
    """The verifier's checkpoint."""
    path: str | None = None
    """The drafter's checkpoint."""
    strategy: str = "specdec"
    """``specdec``, ``AR`` (without a drafter), ``fairseq`` (stock beam search) or ``drafter``."""
    ar_backend: str = "auto"
    """What decodes without a drafter: ``ours``, ``ctranslate2``, or ``auto``, which is what was
    measured to be faster here, and else ours."""
    batch: int = 1
    """Sentences decoded together."""
    beam: int = 5
    """Beam size of the strategy ``fairseq``."""
    nbest: int = 1
    """Outputs of a beam that are put out a line, best first, with tabs between."""
    block_size: int | None = None
    """k; None is what the drafter was trained for."""
    rule: AcceptanceRule = field(default_factory=StrictRule)
    controller: Controller = field(default_factory=Auto)
    limits: GenerationLimits = field(default_factory=GenerationLimits)
    source_lang: str | None = None
    """The source language; None is the verifier checkpoint's, as for the target."""
    target_lang: str | None = None
    target_prefix: str | None = None
    """What every output begins with: symbols of the target dictionary with blanks between, such as
    a language token; None leaves the beginning to the model."""
    device: str = "cpu"
    engine: str = ENGINE.default
    """What runs the models; stock beam search is torch's."""
    precision: str = PRECISION.default
    """The precision of the engine's arithmetic."""
    drafter_precision: str | None = OF_DRAFTER.default
    """The precision of the drafter's; None: the same."""
    tokenizer: str | None = None
    """fairseq's ``--tokenizer``; None where the text is tokenised already."""
    bpe: str | None = None
    """fairseq's ``--bpe``; None where the text is segmented already."""
    encoder_options: Mapping[str, object] = field(default_factory=dict)
    """Options of tokenizer and BPE under fairseq's names (``bpe_codes``, …)."""
    post_process: str | None = None
    """fairseq's ``--post-process``; None removes ``@@ `` markers, unless ``bpe`` does so."""
    keep_bpe: bool = False
    """Put out segmented text."""
    as_transformer: bool = False
    """Fields of a checkpoint that fairseq does not know change nothing of the network."""
    trace: bool = False
    """Record the steps of every sentence; only where a verifier takes steps of our own."""

    def __post_init__(self) -> None:
        for name, kind, example in TYPED:
            if not isinstance(getattr(self, name), kind):
                raise TypeError(f"{name}: give {example}, or another {kind.__name__}")
        if self.strategy not in STRATEGIES:
            raise ValueError(f"--strategy {self.strategy}: must be one of {', '.join(STRATEGIES)}")
        self._check_counts()
        self._check_strategy()
        self._check_limits()
        self._check_engine()

    def _check_counts(self) -> None:
        if self.target_prefix is not None and not self.target_prefix.strip():
            raise ValueError(
                "--target-prefix: is blank; name symbols of the target, or leave it out"
            )
        counts = {"batch": self.batch, "beam": self.beam, "nbest": self.nbest}
        if self.block_size is not None:
            counts["block-size"] = self.block_size
        for flag, count in counts.items():
            if count < 1:
                raise ValueError(f"--{flag} {count}: must be at least 1")
        if self.nbest != 1 and (self.strategy != "fairseq" or self.nbest > self.beam):
            raise ValueError(
                f"--nbest {self.nbest}: only a beam has several outputs; give --strategy fairseq, "
                "and a --beam that is as large"
            )

    def _check_strategy(self) -> None:
        if self.ar_backend not in AR_BACKENDS:
            raise ValueError(
                f"--AR-backend {self.ar_backend}: must be one of {', '.join(AR_BACKENDS)}"
            )
        name = self.controller.name
        if self.strategy != "specdec" and name not in ("auto", "constant"):
            raise ValueError(
                f"--controller {name}: there is nothing to control with --strategy "
                f"{self.strategy}; use --strategy specdec"
            )
        if self.drafts and not self.path:
            raise ValueError(
                f"--path: give the drafter's checkpoint (or a pair's folder and no --AR-path), "
                f"or translate without a drafter; --strategy {self.strategy} needs one"
            )
        if self.strategy != "drafter" and not self.ar_path:
            raise ValueError(
                f"--AR-path: give the verifier's checkpoint; --strategy {self.strategy} needs one"
            )
        if self.strategy in ("drafter", "fairseq") and self.rule.draws:
            raise ValueError(
                f"--sampling: --strategy {self.strategy} takes the best tokens; use --strategy "
                "specdec or AR, or fairseq's own commands"
            )
        if self.trace and self.strategy not in TRACED:
            raise ValueError(
                f"--trace: --strategy {self.strategy} has no draft and verify steps to record; "
                f"use one of {', '.join(TRACED)}"
            )

    @classmethod
    def of_model(cls, folder: Path, **given: Any) -> Settings:
        """Return the settings for a pair's folder, like ``checkpoints/multi30k.en-de``, and
        ordinary text.

        Args:
            given: other settings, which win over what the folder says.

        Raises:
            InferenceError: the folder's ``segmentation.json`` cannot be read.
        """
        return cls(**{**pair_settings(Path(folder)), **given})

    def _check_limits(self) -> None:
        limits = self.limits
        if limits.max_len_a == 0 and limits.min_len > limits.max_len_b:
            raise ValueError(
                f"--min-len {limits.min_len}: is above the maximum length, "
                f"--max-len-b {limits.max_len_b}"
            )
        if self.strategy == "fairseq":
            check_stock_search(asdict(limits))
        if self.strategy == "drafter" and limits.repetition_penalty != 1:
            raise ValueError(
                f"{REPETITION_PENALTY.flag} {limits.repetition_penalty}: changes the verifier's "
                "scores, and the drafter alone has its own; use --strategy specdec or AR"
            )

    def _check_engine(self) -> None:
        engine = "eager" if self.strategy == "fairseq" else ENGINE.check(self.engine)
        check_engine(engine, PRECISION.check(self.precision), self.device)
        of_drafter = OF_DRAFTER.check(self.drafter_precision)
        if self.drafts:
            check_drafter(engine, self.precision, of_drafter, self.device)

    def describe(self) -> JsonObject:
        """All settings, for reports and to know a run again."""
        described = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            **described,
            "rule": self.rule.values,
            "controller": self.controller.describe(),
            "limits": asdict(self.limits),
            "encoder_options": dict(self.encoder_options),
        }

    @property
    def drafts(self) -> bool:
        """Whether the strategy uses a drafter."""
        return self.strategy == "drafter" or (self.strategy == "specdec" and self.controller.drafts)

    @property
    def by_ctranslate2(self) -> bool:
        """Whether CTranslate2 is to decode, if it can."""
        decodes = self.strategy in TRACED and not self.drafts
        return decodes and self.ar_backend == CTRANSLATE2

    @property
    def window(self) -> int:
        """Lines that are read before any is translated, to be sorted by length; 1 at batch 1."""
        return 1 if self.batch == 1 else 64 * self.batch
