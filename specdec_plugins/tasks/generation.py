"""From fairseq's options to a generator that speculates."""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING

import torch
from fairseq.data import Dictionary, FairseqDataset
from fairseq.dataclass import FairseqDataclass
from fairseq.models.transformer import TransformerModelBase
from omegaconf import DictConfig

from specdec_plugins.checkpoints.head_file import load_head
from specdec_plugins.decoding.acceptance import Scoring, choose_rule
from specdec_plugins.decoding.build import build_generator
from specdec_plugins.decoding.controllers.base import controller_of
from specdec_plugins.decoding.controllers.simple import Auto, Constant
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import SHORTEST, GenerationLimits
from specdec_plugins.engines.choice import choose_engines
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.engine import Engines
from specdec_plugins.models.drafter import Drafter
from specdec_plugins.tasks.decoding_config import (
    ControllerConfig,
    EngineConfig,
    LimitsConfig,
    RuleConfig,
)

if TYPE_CHECKING:
    from specdec_plugins.tasks.specdec_config import TranslationSpecdecConfig

logger = logging.getLogger(__name__)


def generation_options(
    args: FairseqDataclass | Namespace | None, cfg: TranslationSpecdecConfig
) -> Namespace:
    """Return fairseq's generation options, completed by the task's (for ``--eval-bleu-args``)."""
    configs = (ControllerConfig, RuleConfig, LimitsConfig, EngineConfig)
    names = {field.name for config in configs for field in fields(config)} - {"_name"}
    defaults = {name: getattr(cfg, name) for name in names | {"temperature", "block_size"}}
    options = dict(args) if isinstance(args, DictConfig) else vars(args) if args else {}
    return Namespace(**{**defaults, **options})


def speculative_generator(
    verifier: TransformerModelBase,
    drafter: Drafter,
    target: Dictionary,
    options: Namespace,
    trains: bool,
) -> SpeculativeGenerator:
    """Return a generator of models that fairseq has loaded.

    Args:
        options: those of :func:`generation_options`.
        trains: it is for the validation of a training.

    Raises:
        ValueError: options, an engine or a precision that do not fit the models.
    """
    rule, limits = choose_rule(options), GenerationLimits.from_config(options)
    controller = controller_of(vars(options))
    if trains and isinstance(controller, Auto):
        # Drafters are compared by the accepted tokens of whole blocks.
        controller = Constant(min_draft=controller.min_draft, max_draft=controller.max_draft)
    head, path = None, getattr(controller, "acceptance_head", None)
    if path is not None:
        head = load_head(path, drafter, Scoring.of(rule, limits).values, options.block_size)
        head = head.to(next(drafter.parameters()).device)
    return build_generator(
        verifier,
        drafter,
        target,
        block_size=options.block_size,
        rule=rule,
        limits=limits,
        controller=controller,
        head=head,
        engines=_engines(drafter, options, trains, controller.drafts),
    )


def _engines(drafter: Drafter, options: Namespace, trains: bool, drafts: bool) -> Engines:
    parameter = next(drafter.parameters())
    dtype = str(parameter.dtype).removeprefix("torch.")
    if trains:
        # To compile models in training would not pay.
        return Engines.both(EagerEngine(dtype))
    name, precision = str(options.engine), str(options.precision or dtype)
    if name == "auto" and parameter.dtype != torch.float32:
        name = "eager"
    drafts_in = str(options.drafter_precision) if drafts and options.drafter_precision else None
    engines = choose_engines(name, precision, drafts_in, str(parameter.device))
    if engines.verifier.dtype != parameter.dtype:
        raise ValueError(
            f"--engine {engines.verifier.name} --precision {precision}: is not for models in "
            f"{dtype}; fairseq's --fp16 says what they are loaded in"
        )
    return engines


def check_sources(
    datasets: Mapping[str, FairseqDataset], limits: GenerationLimits, positions: int
) -> None:
    """Refuse a ``--min-len`` that cannot hold for a sentence that is loaded."""
    if limits.fault(SHORTEST, positions) is None:
        return
    for split, dataset in datasets.items():
        for sentence, length in enumerate(getattr(dataset, "src_sizes", ())):
            if (fault := limits.fault(int(length), positions)) is not None:
                raise ValueError(f"sentence {sentence} of {split}: {fault}")


def refuse_overrides(cfg: TranslationSpecdecConfig) -> None:
    """Refuse ``--model-overrides``, which would reach the checkpoints of ``--path`` alone."""
    overrides = getattr(cfg, "model_overrides", "{}")
    if overrides != "{}" and not overrides.startswith("${"):  # of no command line
        raise ValueError(
            f"--model-overrides {overrides}: does not reach --AR-path; give both checkpoints with "
            "--path drafter.pt:verifier.pt"
        )


@cache
def warn_of_beam(beam: int) -> None:
    """Warn once that the beam is ignored."""
    if beam != 1:
        logger.warning("--beam %d: speculative decoding gives the hypothesis of --beam 1", beam)
