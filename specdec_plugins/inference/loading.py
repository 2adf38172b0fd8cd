"""Loading: from checkpoints and dictionaries to a translator."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fairseq.data.data_utils import infer_language_pair
from fairseq.models.transformer import TransformerModelBase

from specdec_plugins.checkpoints.head_file import load_head
from specdec_plugins.checkpoints.loading import SIDES, State, load_dictionary, load_state
from specdec_plugins.checkpoints.pair import check_pair, load_drafter, load_verifier
from specdec_plugins.decoding.acceptance import Scoring
from specdec_plugins.decoding.build import build_generator, warm_up
from specdec_plugins.decoding.controllers.base import Head
from specdec_plugins.decoding.drafter_alone import DrafterAlone
from specdec_plugins.decoding.drafting import MakeSource
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.step_result import TraceRecorder
from specdec_plugins.decoding.steps.verifier import VerifierStep
from specdec_plugins.engines.choice import choose_engines
from specdec_plugins.engines.engine import Engine, Engines
from specdec_plugins.engines.writer.writer import build_writer
from specdec_plugins.files.errors import ConversionError, InferenceError
from specdec_plugins.inference.backends import (
    BeamSearchGenerator,
    CTranslate2Generator,
    build_beam_search,
    obstacle,
)
from specdec_plugins.inference.settings import CTRANSLATE2, Settings
from specdec_plugins.inference.text import TextCodec, build_segmenters
from specdec_plugins.inference.translator import Generator, Translator
from specdec_plugins.inference.writer_backend import WriterGenerator, writes
from specdec_plugins.machine import give_back
from specdec_plugins.models.drafter import Drafter
from specdec_plugins.tasks.specdec_config import TranslationSpecdecConfig
from specdec_plugins.tasks.translation_specdec import TranslationSpecdecTask

logger = logging.getLogger(__name__)


class Models(NamedTuple):
    """The loaded models."""

    #: Several are an ensemble; none where a drafter works alone.
    verifiers: list[TransformerModelBase]
    drafter: Drafter | None
    head: Head | None


def load_translator(settings: Settings | str | Path, **options: Any) -> Translator:
    """Load the models that the strategy needs, on their device and in their precision.

    Where ONNX Runtime runs all steps, the models' own weights are freed.

    Args:
        settings: a run's settings, or a model as :meth:`Settings.of_model` takes it. The
            translator's settings are these with the languages, the block size and the controller
            that were chosen.
        options: settings by name, which win, such as ``beam=5``.

    Raises:
        CheckpointError: a checkpoint that cannot be used, or not in this role, or dictionaries.
        InferenceError: tokenizer or BPE that cannot be loaded.
        EngineError: an engine that is not installed, or cannot run a model.
        ValueError: a setting that does not fit the models, naming its flag.
    """
    if isinstance(settings, Settings):
        settings = replace(settings, **options)
    else:
        settings = Settings.of_model(settings, **options)
    asked = settings.drafts
    if settings.copy_outruns_drafter:
        logger.info("--controller auto: drafts of a copy; the drafter's by --drafts drafter")
        settings = replace(settings, drafts="copy")
    if settings.kind is not None:
        settings = replace(settings, controller=settings.kind.controller(settings))
        if asked and not settings.controller.drafts:
            logger.warning(
                "--drafts %s: --controller auto drafts nothing, which is faster in int8 and in "
                "large batches; constant drafts",
                asked,
            )
    if not settings.by_ctranslate2:
        return _load(settings)
    try:
        if reason := obstacle(settings):
            raise ConversionError(reason)
        return _load(settings)
    except (ConversionError, OSError) as error:
        logger.warning("--AR-backend %s: %s; our own loop decodes", CTRANSLATE2, error)
        translator = _load(replace(settings, ar_backend="ours"))
        translator.not_by_ctranslate2 = str(error)
        return translator


def _load(settings: Settings) -> Translator:
    states: dict[str, State] = {}
    task = build_task(settings, states)
    settings = replace(settings, source_lang=task.cfg.source_lang, target_lang=task.cfg.target_lang)
    engines = choose_engines(*settings.engines)
    models = _load_models(settings, task, engines.verifier, states)
    positions = [
        int(model.encoder.max_positions())
        for model in (*models.verifiers, models.drafter)
        if model is not None and model.encoder is not None
    ]
    longest = min(positions, default=1)
    codec = TextCodec(
        task.source_dictionary,
        task.target_dictionary,
        longest,
        build_segmenters(settings),
        task.language_tokens,
    )
    codec.encode_prefix(settings.target_prefix)  # before anything is compiled for it
    generator = _build_generator(settings, task, codec, engines, models)
    if fault := settings.limits.fault(longest, generator.positions):
        raise ValueError(fault)
    if isinstance(generator, BeamSearchGenerator):
        _release(engines)
        if settings.path and settings.strategy == "specdec":
            logger.warning(
                "%s: fairseq's search takes no drafts; --beam 1 without its options does",
                settings.search_flag,
            )
    block_size = None
    if isinstance(generator, DrafterAlone):
        block_size = generator.block_size
    if isinstance(generator, SpeculativeGenerator):
        _release(generator.engines)
        with suppress(IndexError):  # of NaN: the first line says so
            warm_up(generator, task.source_dictionary, settings.batch, longest)
        if settings.kind is not None:
            block_size = generator.controller.block_size
            settings = replace(settings, controller=replace(generator.controller))
    give_back()
    return Translator(replace(settings, block_size=block_size), generator, codec)


def _release(engines: Engines) -> None:
    """Free the models' weights where engines, which have their own, run all steps."""
    if engines.verifier.stores_weights and engines.drafter.stores_weights:
        engines.verifier.release()
        engines.drafter.release()
        give_back()


def build_task(
    settings: Settings, states: dict[str, State] | None = None
) -> TranslationSpecdecTask:
    """Return the task that lends languages and dictionaries to both models.

    Args:
        states: is given the checkpoint, by its path, if the languages were read from it.
    """
    source = settings.source_lang
    target = settings.target_lang
    checkpoint = str(settings.ar_path or settings.path)
    if not (source and target):
        state = load_state(checkpoint, settings.as_transformer)
        saved = state["cfg"]["task"]
        if states is not None:
            states[checkpoint] = state
        # fairseq-train saves only languages of its command line, and else infers them like this.
        inferred = infer_language_pair(settings.data)
        source = source or getattr(saved, "source_lang", None) or inferred[0]
        target = target or getattr(saved, "target_lang", None) or inferred[1]
    if not source or not target:
        raise InferenceError(
            f"{checkpoint}: does not name its languages; give --source-lang and --target-lang"
        )
    dictionaries = [
        load_dictionary(settings.data, language, side)
        for side, language in zip(SIDES, (source, target))
    ]
    cfg = TranslationSpecdecConfig(
        data=settings.data,
        source_lang=source,
        target_lang=target,
        as_transformer=settings.as_transformer,
    )
    return TranslationSpecdecTask(cfg, *dictionaries)


def _load_models(
    settings: Settings,
    task: TranslationSpecdecTask,
    engine: Engine,
    states: dict[str, State],
) -> Models:
    """``states``: checkpoints that are read already; each is left to its model alone, and freed."""
    paths = filter(None, [settings.ar_path, *settings.ensemble])
    verifiers = [load_verifier(path, task, states.pop(path, None)) for path in paths]
    drafter = None
    head = None
    if settings.has_drafter:
        file = str(settings.path)
        drafter = load_drafter(file, task, states.pop(file, None))
        if verifiers:
            check_pair(drafter, verifiers[0])
        # Before it is converted: a head knows its drafter by the weights.
        if path := settings.head_path:
            head = load_head(
                path,
                drafter,
                Scoring.of(settings.rule, settings.limits).values,
                settings.block_size,
            ).to(settings.device)
    for model in (*verifiers, drafter):
        if model is not None:
            model.to(device=settings.device, dtype=engine.dtype)
    return Models(verifiers, drafter, head)


def _build_generator(
    settings: Settings,
    task: TranslationSpecdecTask,
    codec: TextCodec,
    engines: Engines,
    models: Models,
) -> Generator:
    verifier = next(iter(models.verifiers), None)
    drafter = models.drafter
    target = codec.target
    if settings.strategy == "drafter" and drafter is not None:
        return DrafterAlone(
            drafter, verifier, target, settings.block_size, settings.limits, engines
        )
    assert verifier is not None
    if settings.by_ctranslate2:
        return CTranslate2Generator(
            verifier, codec, settings.limits, settings.precision, beams=settings.beams
        )
    if settings.by_fairseq:
        return build_beam_search(settings, task, models.verifiers, engines.verifier)
    if writes(settings, verifier):
        penalties = {target.unk(): settings.limits.unkpen}
        writer = build_writer(VerifierStep(verifier), target.pad(), target.eos(), penalties)
        if writer is not None:
            return WriterGenerator(writer, settings, verifier, target)
    drafts: Drafter | MakeSource | None = drafter
    if settings.kind is not None and not settings.kind.trained:
        drafts = partial(
            settings.kind.source, settings, codec.source, target, verifier, engines.verifier
        )
    generator = build_generator(
        verifier,
        drafts,
        target,
        block_size=settings.block_size,
        rule=settings.rule,
        limits=settings.limits,
        controller=settings.controller,
        head=models.head,
        engines=engines,
    )
    if settings.trace:
        generator.observers.append(TraceRecorder(target))
    return generator
