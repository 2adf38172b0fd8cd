"""Loading: from checkpoints and dictionaries to a translator."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path

from fairseq.data import Dictionary
from fairseq.data.data_utils import infer_language_pair
from fairseq.models.transformer import TransformerModelBase

from specdec_plugins.checkpoints.archive import one_line
from specdec_plugins.checkpoints.head_file import load_head
from specdec_plugins.checkpoints.loading import load_state
from specdec_plugins.checkpoints.pair import check_pair, load_drafter, load_verifier
from specdec_plugins.decoding.acceptance import Scoring
from specdec_plugins.decoding.build import (
    build_generator,
    checked_block_size,
    recommended,
    warm_up,
)
from specdec_plugins.decoding.controllers.base import Head
from specdec_plugins.decoding.controllers.simple import Auto, Constant, NoDrafts
from specdec_plugins.decoding.drafter_alone import DrafterAlone
from specdec_plugins.decoding.drafting import DraftSource
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.step_result import TraceRecorder
from specdec_plugins.decoding.text_drafting import LONGEST, CopyDrafting, TextDrafting
from specdec_plugins.engines.choice import choose_engine, choose_engines, engine_name, is_installed
from specdec_plugins.engines.engine import Engine, Engines
from specdec_plugins.files.errors import ConversionError, InferenceError
from specdec_plugins.inference.beam_search import BeamSearchGenerator, build_beam_search
from specdec_plugins.inference.ctranslate2 import CTranslate2Generator, obstacle, refuse_languages
from specdec_plugins.inference.report import model_files
from specdec_plugins.inference.settings import CTRANSLATE2, Settings
from specdec_plugins.inference.text import TextCodec, build_segmenters
from specdec_plugins.inference.translator import Generator, Translator
from specdec_plugins.machine import give_back
from specdec_plugins.models.drafter import Drafter
from specdec_plugins.tasks.specdec_config import TranslationSpecdecConfig
from specdec_plugins.tasks.translation_specdec import TranslationSpecdecTask

logger = logging.getLogger(__name__)

COPY_ROWS = 4
"""The largest batch in which drafts of a copy pay on a CPU (docs/benchmarks.md)."""


def load_translator(settings: Settings | str | Path) -> Translator:
    """Load the models that the strategy needs, on their device and in their precision.

    Args:
        settings: a run's settings, or the folder of a pair. The translator's settings are these
            with the languages and the controller that were chosen.

    Raises:
        CheckpointError: a checkpoint that cannot be used, or not in this role.
        InferenceError: dictionaries, tokenizer or BPE that cannot be loaded.
        EngineError: an engine that is not installed, or cannot run a model.
        ValueError: a setting that does not fit the models, naming its flag.
    """
    if not isinstance(settings, Settings):
        settings = Settings.of_model(Path(settings))
    settings = _with_text_controller(settings)
    if settings.by_ctranslate2 and (reason := obstacle(settings)):
        return _by_our_loop(settings, reason)
    task = build_task(settings)
    languages = task.cfg.source_lang, task.cfg.target_lang
    settings = replace(settings, source_lang=languages[0], target_lang=languages[1])
    segmenters = build_segmenters(settings, languages)
    stock = settings.strategy == "fairseq"
    name = "eager" if stock or settings.by_ctranslate2 else settings.engine
    precision = "float32" if settings.by_ctranslate2 else settings.precision
    drafter_precision = settings.drafter_precision if settings.uses_drafter else None
    engines = choose_engines(name, precision, drafter_precision, settings.device)
    verifier, drafter, head = _load_models(settings, task, engines.verifier)
    if drafter is not None and settings.strategy == "specdec":
        rule, engine = settings.rule, engines.verifier
        controller = recommended(settings.controller, drafter, rule, engine)
        settings = replace(settings, controller=controller)
    readers = [model.encoder for model in (verifier, drafter) if model is not None]
    positions = [int(encoder.max_positions()) for encoder in readers if encoder is not None]
    # A drafter without the verifier whose encoder it needs is refused below.
    longest = min(positions, default=1)
    dictionaries = task.source_dictionary, task.target_dictionary
    codec = TextCodec(*dictionaries, longest, segmenters, task.language_tokens)
    codec.encode_prefix(settings.target_prefix)  # before anything is compiled for it
    try:
        generator = _build_generator(settings, task, engines, verifier, drafter, head)
    except (ConversionError, OSError) as error:
        if not settings.by_ctranslate2:
            raise
        return _by_our_loop(settings, str(error))
    if fault := settings.limits.fault(longest, generator.positions):
        raise ValueError(fault)
    give_back()
    if isinstance(generator, SpeculativeGenerator):
        # Of scores that are not numbers the first line tells.
        with suppress(AssertionError, IndexError, RuntimeError):
            seconds = warm_up(generator, task.source_dictionary, settings.batch, longest)
            logger.info("%s: warmed up in %.1f s", engines.name, seconds)
    block_size = settings.block_size or LONGEST if settings.drafts_text else None
    if drafter is not None:
        block_size = checked_block_size(drafter, settings.block_size)
    runner: CTranslate2Generator | Engines = engines
    if not isinstance(generator, BeamSearchGenerator):
        runner = generator if isinstance(generator, CTranslate2Generator) else generator.engines
    return Translator(settings, generator, codec, runner, block_size)


def _with_text_controller(settings: Settings) -> Settings:
    """Return the settings with the controller that ``auto`` stands for where drafts are texts."""
    controller, copied = settings.controller, settings.draft_kind == "copy"
    if not settings.drafts_text:
        return settings
    if copied and not is_installed(
        engine_name(settings.copy_engine, settings.copy_precision, settings.device)
    ):
        logger.warning("no drafts: --drafts copy needs pip install 'specdec-plugins[int8]'")
        return replace(settings, controller=NoDrafts())
    if not isinstance(controller, Auto):
        return settings
    large = settings.device == "cpu" and settings.batch > COPY_ROWS
    if copied and (large or settings.copy_precision == settings.precision):
        return replace(settings, controller=NoDrafts())
    constant = Constant(min_draft=controller.min_draft, max_draft=controller.max_draft)
    return replace(settings, controller=constant)


def _by_our_loop(settings: Settings, reason: str) -> Translator:
    """Load our own loop in place of CTranslate2."""
    logger.warning("--AR-backend %s: %s; our own loop decodes", CTRANSLATE2, reason)
    translator = load_translator(replace(settings, ar_backend="ours"))
    translator.not_by_ctranslate2 = reason
    return translator


def build_task(settings: Settings) -> TranslationSpecdecTask:
    """Return the task that lends languages and dictionaries to both models."""
    languages = _languages(settings)
    dictionaries = [_load_dictionary(settings, language, languages) for language in languages]
    cfg = TranslationSpecdecConfig(
        data=settings.data,
        source_lang=languages[0],
        target_lang=languages[1],
        as_transformer=settings.as_transformer,
    )
    return TranslationSpecdecTask(cfg, *dictionaries)


def _languages(settings: Settings) -> tuple[str, str]:
    """Return source and target: the settings', else a model's, else those of the folder's files."""
    source, target, known = settings.source_lang, settings.target_lang, ""
    for path in (settings.ar_path, settings.path if settings.uses_drafter else None):
        if path and not (source and target):
            state = load_state(path, as_transformer=True)
            saved = state["cfg"]["task"]
            if state["multilingual"] is not None:
                known = f", which are two of {state['multilingual'].known}"
            source = source or getattr(saved, "source_lang", None)
            target = target or getattr(saved, "target_lang", None)
    # fairseq-train saves only languages from its command line, and else infers them in this way.
    inferred = infer_language_pair(settings.data)
    source, target = source or inferred[0], target or inferred[1]
    if not source or not target:
        raise InferenceError(
            f"{settings.ar_path or settings.path}: does not name its languages; give "
            f"--source-lang and --target-lang{known}"
        )
    return source, target


def _load_dictionary(settings: Settings, language: str, languages: tuple[str, str]) -> Dictionary:
    path = os.path.join(settings.data, f"dict.{language}.txt")
    if not os.path.isfile(path):
        multilingual = load_state(str(settings.ar_path or settings.path), True)["multilingual"]
        if multilingual is not None:
            multilingual.check(languages)  # a language that the model lacks has no dictionary
        names = " and ".join(f"dict.{name}.txt" for name in languages)
        raise InferenceError(f"{path}: no such file; its folder must hold {names}")
    try:
        return TranslationSpecdecTask.load_dictionary(path)
    except Exception as error:  # fairseq raises bare exceptions of several kinds
        raise InferenceError(f"{path}: is no fairseq dictionary ({one_line(error)})") from error


def _load_models(
    settings: Settings, task: TranslationSpecdecTask, engine: Engine
) -> tuple[TransformerModelBase | None, Drafter | None, Head | None]:
    """Return verifier, drafter and acceptance head, as far as the strategy uses them."""
    verifier, drafter, head = None, None, None
    if settings.ar_path:
        verifier = load_verifier(settings.ar_path, task)
    if settings.uses_drafter:
        assert settings.path is not None
        drafter = load_drafter(settings.path, task)
        if verifier is not None:
            check_pair(drafter, verifier)
        # Before it is converted: a head knows its drafter by the weights.
        path = model_files(settings).get("acceptance_head")
        scoring = Scoring.of(settings.rule, settings.limits)
        if path is not None:
            head = load_head(path, drafter, scoring.values, settings.block_size)
            head = head.to(settings.device)
    for model in (verifier, drafter):
        if model is not None:
            model.to(device=settings.device, dtype=engine.dtype)
    return verifier, drafter, head


def _build_generator(
    settings: Settings,
    task: TranslationSpecdecTask,
    engines: Engines,
    verifier: TransformerModelBase | None,
    drafter: Drafter | None,
    head: Head | None,
) -> Generator:
    target, limits, size = task.target_dictionary, settings.limits, settings.block_size
    if settings.strategy == "fairseq":
        return build_beam_search(settings, task, verifier)
    if settings.by_ctranslate2:
        assert verifier is not None
        refuse_languages(task.language_tokens)
        words, rows = (task.source_dictionary, target), settings.batch
        return CTranslate2Generator(verifier, words, limits, settings.precision, rows=rows)
    if settings.strategy == "drafter":
        assert drafter is not None
        return DrafterAlone(drafter, verifier, target, size, limits, engines)
    if settings.drafts_text:
        generator = _build_text_generator(settings, task, engines.verifier, verifier)
    else:
        generator = build_generator(
            verifier,
            drafter,
            target,
            block_size=size,
            rule=settings.rule,
            limits=limits,
            controller=settings.controller,
            head=head,
            engines=engines,
        )
    if settings.trace:
        generator.observers.append(TraceRecorder(target))
    return generator


def _build_text_generator(
    settings: Settings,
    task: TranslationSpecdecTask,
    engine: Engine,
    verifier: TransformerModelBase | None,
) -> SpeculativeGenerator:
    """Return a generator whose drafts are texts, which a copy of the verifier may write."""
    assert verifier is not None
    source, target = task.source_dictionary, task.target_dictionary
    if settings.draft_kind == "copy":
        name, precision = settings.copy_engine, settings.copy_precision
        copy_engine = choose_engine(name, precision, settings.device)
        model = verifier
        if copy_engine.dtype != engine.dtype:
            model = deepcopy(verifier).to(copy_engine.dtype)
        copy = SpeculativeGenerator(model, None, target, limits=settings.limits, engine=copy_engine)
        drafter = DraftSource(partial(CopyDrafting, copy), copy_engine)
    else:
        symbols = [target.index(symbol) for symbol in source.symbols]
        drafter = DraftSource(partial(TextDrafting.of, source.pad(), symbols))
    controller = settings.controller.ready(settings.block_size or LONGEST)
    how = controller, settings.rule, settings.limits, engine
    return SpeculativeGenerator(verifier, drafter, target, *how)
