"""The settings of a run of inference, checked before anything is loaded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import torch

from specdec_plugins.checkpoints.config import AS_TRANSFORMER
from specdec_plugins.checkpoints.head_file import find_head
from specdec_plugins.decoding.acceptance import StrictRule
from specdec_plugins.decoding.controllers.base import Controller
from specdec_plugins.decoding.controllers.simple import Auto
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.options import check_options, option
from specdec_plugins.engines.choice import check_drafter, precision_of_drafts
from specdec_plugins.files.output import JsonObject, Location
from specdec_plugins.inference.drafts.base import DRAFTS, DraftKind
from specdec_plugins.inference.pair_folder import pair_settings
from specdec_plugins.inference.run_options import RunOptions
from specdec_plugins.verifiers.families import limits_of, search_of

TRACED = ("specdec", "AR")
STRATEGIES = (*TRACED, "fairseq", "drafter")
CTRANSLATE2 = "ctranslate2"

#: Settings that load models quickly, to look at them.
PLAIN: JsonObject = {
    "device": "cpu",
    "engine": "eager",
    "precision": "float32",
    "drafter_precision": None,
}


@dataclass(frozen=True)
class Settings(RunOptions):
    """A run of inference; fields that are options are flags of specdec-translate, too."""

    #: The folder of ``dict.{source}.txt`` and ``dict.{target}.txt``; also of the BPE ``codes``.
    data: str
    #: The verifier's checkpoint.
    ar_path: str | None = None
    #: The drafter's checkpoint.
    path: str | None = None
    #: False if the drafter was not named, but lies in the pair's folder: ``auto`` may do without.
    drafter_named: bool = True
    strategy: str = option(
        "specdec",
        "specdec (default): draft and verify; AR: greedy, no drafts (our loop); fairseq: stock "
        "beam search; drafter: the drafter alone, unverified",
        choices=STRATEGIES,
    )
    ar_backend: str = option(
        "auto",
        "decoder where nothing is drafted: ours; ctranslate2 (CPUs; extra [ctranslate2]); auto: "
        "the one that specdec-tune found faster, or ours without its table",
        choices=("auto", "ours", CTRANSLATE2),
    )
    beam: int | None = option(
        None,
        "hypotheses of beam search: fairseq's own, on our engine, without drafts (1: none; with "
        "--strategy fairseq 5)",
        1,
    )
    nbest: int = option(
        1, "outputs of a beam, printed in one line, best first, with tabs between (1)", 1
    )
    #: Options of fairseq's search under fairseq's names (``no_repeat_ngram_size``, …).
    search_options: Mapping[str, object] = field(default_factory=dict)
    #: fairseq's ``--print-alignment`` for :attr:`Hypothesis.alignment`: hard or soft; None: none.
    print_alignment: str | None = option(None, "", choices=("hard", "soft"))
    #: Checkpoints of the other verifiers of an ensemble, for fairseq's search.
    ensemble: Sequence[str] = ()
    #: The name of a kind of draft, or a file; ``texts``: those of :attr:`Line.draft`.
    drafts: str | None = option(None, "")
    source_lang: str | None = option(None, "default: the checkpoint's")
    target_lang: str | None = option(None, "default: the checkpoint's")
    target_prefix: str | None = option(
        None,
        "begin every output with this text, segmented as the target; for instance, a language "
        "token",
    )
    #: fairseq's ``--tokenizer``; None where the text is tokenised already.
    tokenizer: str | None = None
    #: fairseq's ``--bpe``; None where the text is segmented already.
    bpe: str | None = None
    #: Options of tokenizer and BPE under fairseq's names (``bpe_codes``, …).
    encoder_options: Mapping[str, object] = field(default_factory=dict)
    #: fairseq's ``--post-process``; None removes ``@@ `` markers, unless ``bpe`` does so.
    post_process: str | None = None
    keep_bpe: bool = option(False, "leave the output segmented")
    split_sentences: bool = option(
        False, "translate each sentence of a line by itself, and join them again"
    )
    as_transformer: bool = option(False, AS_TRANSFORMER)
    #: Record the steps of every sentence.
    trace: bool = False
    #: Compute scores of outputs, even by a backend that does not need them.
    scores: bool = True

    def __post_init__(self) -> None:
        check_options(self)
        if not isinstance(self.controller, Controller):
            raise TypeError(f"controller: is {self.controller!r}; give an object, such as Tree()")
        if not (self.drafts in (None, *DRAFTS) or os.path.exists(str(self.drafts))):
            raise ValueError(
                f"--drafts {self.drafts}: is neither a file nor one of {', '.join(DRAFTS)}"
            )
        if self.searched and self.drafts is not None:
            raise ValueError(
                f"--drafts {self.drafts} {self.search_flag}: fairseq's search takes no drafts, "
                "which would multiply its arithmetic; give --beam 1 without its options"
            )
        self._check_alignment()
        how = self.search_flag if self.searched else f"--strategy {self.strategy}"
        for flag in self._flags_in_vain():
            raise ValueError(f"{flag}: does not work with {how}")
        if self.kind is not None and not self.kind.takes(self.controller):
            raise ValueError(
                f"--controller {self.controller.name}: does not work with --drafts "
                f"{self.drafts_name}, which are no trees and have no acceptance head"
            )
        for flag in self.flags_of_lines():
            if self.split_sentences:
                raise ValueError(f"{flag}: does not work with --split-sentences")
        if (self.has_drafter and not self.path) or (
            self.strategy != "drafter" and not self.ar_path
        ):
            raise ValueError(
                f"--strategy {self.strategy}: lacks a checkpoint; give the verifier's by --AR-path "
                "and the drafter's by --path, or a pair's folder or a verifier as PAIR"
            )
        if self.ensemble and not self.by_fairseq:
            models = ":".join([str(self.ar_path), *self.ensemble])
            raise ValueError(f"--path {models}: ensembles have beam search alone: --beam 2 or more")
        check_drafter(*self.engines)

    def _flags_in_vain(self) -> Iterator[str]:
        """Yield the flags that the strategy or beam search does not take."""
        controller = self.controller.name
        by_our_loop = self.strategy in TRACED and not self.searched
        if controller not in ("auto", "constant") and not self.speculates:
            yield f"--controller {controller}"
        if self.rule.draws and self.strategy not in TRACED:
            yield "--sampling"
        penalty = self.limits.repetition_penalty
        if penalty != 1 and not by_our_loop:
            whose = "or generation_config.json's; specdec-translate --repetition-penalty 1 has none"
            yield f"--repetition-penalty {penalty} ({whose})"
        if self.drafts is not None and self.strategy != "specdec":
            yield f"--drafts {self.drafts}"
        if self.trace and not by_our_loop:
            yield "--trace"
        if self.nbest > self.beams:
            yield f"--nbest {self.nbest} --beam {self.beams}"
        if self.searched and not self.rule.lossless:
            of_rule = [f"--{name} {value}" for name, value in self.rule.values.items()]
            yield " ".join(of_rule) or self.rule.name

    def flags_of_lines(self) -> Iterator[str]:
        """Yield the flags that need whole lines."""
        if self.trace:
            yield "--trace"
        if self.nbest > 1:
            yield f"--nbest {self.nbest}"
        if self.print_alignment is not None:
            yield f"--print-alignment {self.print_alignment}"
        if self.drafts_path is not None:
            yield f"--drafts {self.drafts}"
        if self.search_options.get("constraints"):
            yield "--constraints"

    def _check_alignment(self) -> None:
        """Refuse alignments where no search has fairseq's own model, which knows its attention."""
        if self.print_alignment is None:
            return
        flag = f"--print-alignment {self.print_alignment}"
        if not self.by_fairseq:
            raise ValueError(f"{flag}: is of beams; give --beam 2 or more")
        if self.searched and self.engine not in ("auto", "eager"):
            raise ValueError(f"{flag}: not by --engine {self.engine}; give --engine eager")

    @classmethod
    def of_model(
        cls, model: str | Path, dictionaries: Path | None = None, **options: object
    ) -> Settings:
        """Return the settings for a model and ordinary text; ``options`` win over the model's.

        Args:
            model: the folder of a pair, like ``checkpoints/multi30k.en-de``, or of transformers, or
                a verifier's checkpoint, beside its dictionaries.
            dictionaries: their folder, if it is another.

        Raises:
            InferenceError: the folder's ``segmentation.json`` cannot be read.
        """
        values = pair_settings(Path(model), dictionaries)
        values["limits"] = GenerationLimits(**limits_of(values["ar_path"]))
        if "path" in options:
            values.pop("drafter_named", None)
        return cls(**{**values, **options})

    def describe(self) -> JsonObject:
        """Return all settings, for reports and to know a run again."""
        return {
            **{field.name: getattr(self, field.name) for field in fields(self)},
            "rule": self.rule.values,
            "controller": self.controller.describe(),
            "limits": asdict(self.limits),
            "encoder_options": dict(self.encoder_options),
            "search_options": dict(self.search),
        }

    @property
    def search(self) -> JsonObject:
        """The options of fairseq's search: those given, and under a beam those of a folder."""
        options = search_of(self.ar_path) if self.beams > 1 else {}
        return {**options, **self.search_options}

    @property
    def beams(self) -> int:
        """The hypotheses of beam search; 1: none."""
        return self.beam or (5 if self.strategy == "fairseq" else 1)

    @property
    def searched(self) -> bool:
        """True if fairseq's search decodes in place of our own loop."""
        return self.strategy in TRACED and (self.beams > 1 or any(self.search_options.values()))

    @property
    def by_fairseq(self) -> bool:
        """True if fairseq's search decodes, over our engine or its own model."""
        return self.searched or self.strategy == "fairseq"

    @property
    def speculates(self) -> bool:
        """True if our own loop is to draft and verify, if the controller drafts."""
        return self.strategy == "specdec" and not self.searched

    @property
    def search_flag(self) -> str:
        """The flag that asks for fairseq's search."""
        options = (name for name, value in self.search_options.items() if value)
        return f"--beam {self.beams}" if self.beams > 1 else f"--{next(options).replace('_', '-')}"

    @property
    def stock_model(self) -> bool:
        """True if fairseq's search asks fairseq's own model, not our engine."""
        return self.strategy == "fairseq" or self.print_alignment is not None

    @property
    def kind(self) -> DraftKind | None:
        """The kind of drafts; None if nothing is drafted."""
        if self.strategy == "drafter":
            return DRAFTS["drafter"]
        if not (self.speculates and self.controller.drafts):
            return None
        name = self.drafts or ("drafter" if self.path and not self.copy_outruns_drafter else "copy")
        return DRAFTS.get(name, DRAFTS["texts"])

    @property
    def leaves_drafts_open(self) -> bool:
        """True if ``auto`` may take any drafts: on a CPU, with an output that does not depend on
        them."""
        return (
            self.speculates
            and self.controller == Auto()
            and self.drafts is None
            and self.strict_on_cpu
        )

    @property
    def follows_tables(self) -> bool:
        """True if a run decodes as specdec-tune has found to be the fastest."""
        greedy = self.strategy == "AR" and self.ar_backend == "auto" and self.strict_on_cpu
        return self.leaves_drafts_open or greedy

    @property
    def strict_on_cpu(self) -> bool:
        """True if a CPU decodes, and accepts only what the verifier itself would write."""
        cpu = torch.device(self.device).type == "cpu"
        return cpu and self.rule == StrictRule() and not self.searched

    @property
    def copy_outruns_drafter(self) -> bool:
        """True if drafts are left open and the engine has int8, in which a copy was faster than a
        trained drafter wherever both were measured (docs/benchmarks.md, "Speed")."""
        return (
            self.leaves_drafts_open
            and not self.drafter_named
            and self.block_size is None
            and self.drafter_precision is None
            and precision_of_drafts(None, True, self.engine, self.precision, self.device) == "int8"
        )

    @property
    def drafts_name(self) -> str | None:
        """The name of the kind of drafts, or their file; None if nothing is drafted."""
        return None if self.kind is None else self.drafts or self.kind.name

    @property
    def drafts_path(self) -> str | None:
        """The file of drafts, the folder of them, or ``texts``; None if drafts are no such."""
        return self.drafts if self.kind is not None and self.kind.of_lines else None

    @property
    def has_drafter(self) -> bool:
        """True if a trained drafter drafts."""
        return self.kind is not None and self.kind.trained

    @property
    def head_path(self) -> Location | None:
        """The file of the acceptance head that the controller asks, if there is one."""
        if not self.has_drafter or not self.controller.asks_head:
            return None
        return getattr(self.controller, "acceptance_head", None) or find_head(
            str(self.path), self.rule.name
        )

    @property
    def by_ctranslate2(self) -> bool:
        """True if CTranslate2 is to decode, if it can."""
        return self.strategy in TRACED and self.kind is None and self.ar_backend == CTRANSLATE2

    @property
    def engines(self) -> tuple[str, str, str | None, str]:
        """The engine that runs the models, its precision, the drafter's, and the device."""
        if self.by_ctranslate2:  # which takes the model as PyTorch has it
            return "eager", "float32", None, self.device
        engine = "eager" if self.stock_model else self.engine
        drafts = None
        if self.has_drafter:
            strict = self.strategy == "specdec" and self.rule == StrictRule()
            drafts = precision_of_drafts(
                self.drafter_precision, strict, engine, self.precision, self.device
            )
        return engine, self.precision, drafts, self.device

    @property
    def policy(self) -> str:
        """The controller's name, or the strategy or backend where nothing is controlled."""
        if self.by_ctranslate2:
            return CTRANSLATE2
        if self.searched:
            return "beam"
        return self.controller.name if self.strategy == "specdec" else self.strategy

    @property
    def window(self) -> int:
        """Lines that are read ahead, to be sorted by length; 1 at batch 1."""
        return 1 if self.batch == 1 else 64 * self.batch
