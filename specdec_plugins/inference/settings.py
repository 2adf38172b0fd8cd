"""The settings of a run of inference, checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from specdec_plugins.checkpoints.config import AS_TRANSFORMER
from specdec_plugins.decoding.acceptance import AcceptanceRule, StrictRule
from specdec_plugins.decoding.controllers.base import Controller
from specdec_plugins.decoding.controllers.simple import Auto
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.options import PRECISION, EngineOptions, check_options, option
from specdec_plugins.engines.choice import PRECISIONS, check_drafter, engine_name
from specdec_plugins.files.output import JsonObject
from specdec_plugins.inference.pair_folder import pair_settings

STRATEGIES = ("specdec", "AR", "fairseq", "drafter")
TRACED = ("specdec", "AR")
CHAINS = ("auto", "constant", "heuristic", "confidence")
"""Controllers of drafts that are texts."""
CTRANSLATE2 = "ctranslate2"
AR_BACKENDS = ("auto", "ours", CTRANSLATE2)

PLAIN: JsonObject = {
    "device": "cpu",
    "engine": "eager",
    "precision": "float32",
    "drafter_precision": None,
}
"""Settings that load models quickly, to look at them."""


@dataclass(frozen=True)
class Settings(EngineOptions):
    """A run of inference; fields that are options are flags of specdec-translate, too."""

    data: str
    """The folder of ``dict.{source}.txt`` and ``dict.{target}.txt``; also of the BPE ``codes``."""
    ar_path: str | None = None
    """The verifier's checkpoint."""
    path: str | None = None
    """The drafter's checkpoint."""
    strategy: str = option(
        "specdec",
        "specdec (default); AR: cached, without a drafter; fairseq: stock beam search; drafter: "
        "the drafter alone, unverified",
        choices=STRATEGIES,
    )
    ar_backend: str = option(
        "auto",
        "what decodes without a drafter: ours; ctranslate2 (CPUs; extra [ctranslate2]); auto (what "
        "specdec-tune found to be faster, else ours)",
        choices=AR_BACKENDS,
    )
    batch: int = option(1, "sentences at a time (1)", 1)
    beam: int = option(5, "for --strategy fairseq (5)", 1)
    nbest: int = option(1, "", 1)
    """Outputs of a beam, put out in one line, best first, with tabs between."""
    drafts: str | None = option(
        None,
        "by the pair's drafter (default); copy: by the verifier itself in int8 (on a GPU float16), "
        "the default without a drafter; source: the source is the draft; FILE: a text a line",
    )
    """``texts``: those of :attr:`Line.draft`."""
    block_size: int | None = option(None, "slots drafted in a pass (what was trained)", 1)
    rule: AcceptanceRule = field(default_factory=StrictRule)
    controller: Controller = field(default_factory=Auto)
    limits: GenerationLimits = field(default_factory=GenerationLimits)
    source_lang: str | None = option(None, "default: the checkpoint's")
    target_lang: str | None = option(None, "default: the checkpoint's")
    target_prefix: str | None = option(
        None,
        "the beginning of every output, in the target's segmented text: a language token, for "
        "instance",
    )
    device: str = "cpu"
    precision: str = option("float32", f"{PRECISION} (float32)", choices=PRECISIONS)
    tokenizer: str | None = None
    """fairseq's ``--tokenizer``; None where the text is tokenised already."""
    bpe: str | None = None
    """fairseq's ``--bpe``; None where the text is segmented already."""
    encoder_options: Mapping[str, object] = field(default_factory=dict)
    """Options of tokenizer and BPE under fairseq's names (``bpe_codes``, …)."""
    post_process: str | None = None
    """fairseq's ``--post-process``; None removes ``@@ `` markers, unless ``bpe`` does so."""
    keep_bpe: bool = option(False, "put out segmented text as it is")
    as_transformer: bool = option(False, AS_TRANSFORMER)
    trace: bool = False
    """Record the steps of every sentence."""

    def __post_init__(self) -> None:
        check_options(self)
        strategy, penalty = self.strategy, self.limits.repetition_penalty
        stock_or_alone = strategy in ("fairseq", "drafter")
        refused = {
            f"--controller {self.controller.name}": strategy != "specdec"
            and self.controller.name not in ("auto", "constant"),
            "--sampling": stock_or_alone and self.rule.draws,
            f"--repetition-penalty {penalty}": stock_or_alone and penalty != 1,
            f"--drafts {self.drafts}": self.drafts is not None and strategy != "specdec",
            "--trace": self.trace and strategy not in TRACED,
            f"--controller {self.controller.name} --drafts {self.draft_kind}": self.drafts_text
            and self.controller.name not in CHAINS,
            f"--nbest {self.nbest}": self.nbest > (self.beam if strategy == "fairseq" else 1),
        }
        for flag, is_refused in refused.items():
            if is_refused:
                raise ValueError(f"{flag}: cannot be had with --strategy {strategy}")
        if self.uses_drafter and not self.path:
            raise ValueError(
                f"--path: give the drafter's checkpoint (or a pair's folder and no --AR-path); "
                f"--strategy {strategy} needs one"
            )
        if strategy != "drafter" and not self.ar_path:
            raise ValueError(
                f"--AR-path: give the verifier's checkpoint, or a pair's folder or a checkpoint as "
                f"PAIR; --strategy {strategy} needs a verifier"
            )
        engine = "eager" if strategy == "fairseq" else self.engine
        engine_name(engine, self.precision, self.device)  # or a refusal
        if self.uses_drafter:
            check_drafter(engine, self.precision, self.drafter_precision, self.device)

    @classmethod
    def of_model(cls, folder: Path, **options: Any) -> Settings:
        """Return the settings for a pair's folder, like ``checkpoints/multi30k.en-de``, and
        ordinary text; ``options`` win over the folder's.

        Raises:
            InferenceError: the folder's ``segmentation.json`` cannot be read.
        """
        return cls(**{**pair_settings(Path(folder)), **options})

    def describe(self) -> JsonObject:
        """Return all settings, for reports and to know a run again."""
        return {
            **{field.name: getattr(self, field.name) for field in fields(self)},
            "rule": self.rule.values,
            "controller": self.controller.describe(),
            "limits": asdict(self.limits),
            "encoder_options": dict(self.encoder_options),
        }

    @property
    def uses_drafter(self) -> bool:
        """True if a trained drafter is needed."""
        drafts = self.strategy == "specdec" and self.controller.drafts and not self.drafts_text
        return self.strategy == "drafter" or drafts

    @property
    def drafts_text(self) -> bool:
        """True if drafts are texts, which a copy of the verifier may write."""
        drafts = self.strategy == "specdec" and self.controller.drafts
        return drafts and self.draft_kind != "drafter"

    @property
    def draft_kind(self) -> str:
        """The source of drafts: ``drafter``, ``copy``, ``source``, ``texts`` or their file."""
        return self.drafts or ("drafter" if self.path else "copy")

    @property
    def drafts_path(self) -> str | None:
        """The file of drafts, the folder of them, or ``texts``; None if drafts are no such."""
        return self.drafts if self.drafts_text and self.drafts not in ("copy", "source") else None

    @property
    def copy_precision(self) -> str:
        """The precision of a copy that writes drafts."""
        gpu = torch.device(self.device).type == "cuda"
        return self.drafter_precision or ("float16" if gpu else "int8")

    @property
    def copy_engine(self) -> str:
        """The engine of that copy: eager has no int8."""
        return "auto" if self.copy_precision == "int8" and self.engine == "eager" else self.engine

    @property
    def by_ctranslate2(self) -> bool:
        """True if CTranslate2 is to decode, if it can."""
        decodes = self.strategy in TRACED and not (self.uses_drafter or self.drafts_text)
        return decodes and self.ar_backend == CTRANSLATE2

    @property
    def window(self) -> int:
        """Lines that are read ahead, to be sorted by length; 1 at batch 1."""
        return 1 if self.batch == 1 else 64 * self.batch
