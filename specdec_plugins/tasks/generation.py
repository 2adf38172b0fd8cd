"""From fairseq's options to a generator that speculates, or to a model that its search asks."""

from __future__ import annotations

import logging
from argparse import Namespace
from dataclasses import fields

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerModelBase
from omegaconf import DictConfig

from specdec_plugins.checkpoints.head_file import load_head
from specdec_plugins.decoding.acceptance import Scoring, StrictRule, choose_rule
from specdec_plugins.decoding.build import build_generator
from specdec_plugins.decoding.controllers.base import controller_of
from specdec_plugins.decoding.controllers.simple import Auto, Constant
from specdec_plugins.decoding.fairseq_search import EngineModel, engine_model
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.engines.choice import choose_engines, precision_of_drafts
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.engine import Engines
from specdec_plugins.files.errors import ConfigError
from specdec_plugins.models.drafter import Drafter
from specdec_plugins.tasks.specdec_config import DecodingConfig, TranslationSpecdecConfig

logger = logging.getLogger(__name__)

#: Options of fairseq's search that only its own models honour: attention, and dropout.
OF_STOCK_MODELS = {
    "print_alignment": "--print-alignment",
    "replace_unk": "--replace-unk",
    "retain_dropout": "--retain-dropout",
}


def generation_options(
    args: FairseqDataclass | Namespace | None, cfg: TranslationSpecdecConfig
) -> Namespace:
    """Return fairseq's generation options, completed by the task's (for ``--eval-bleu-args``)."""
    names = {field.name for field in fields(DecodingConfig)} - {"_name"}
    defaults = {name: getattr(cfg, name) for name in names | {"temperature", "block_size"}}
    if args is None:
        args = Namespace()
    options = dict(args) if isinstance(args, DictConfig) else vars(args)
    return Namespace(**{"beam": 1, **defaults, **options})


def verifiers_of(
    models: list[BaseFairseqModel], verifier: TransformerModelBase | None
) -> list[BaseFairseqModel]:
    """Return the verifiers among models; ``verifier`` stands in for missing ones."""
    verifiers = [model for model in models if not isinstance(model, Drafter)] or [verifier]
    if None in verifiers:
        raise ConfigError("no verifier: give --path drafter.pt:verifier.pt, or --AR-path FILE")
    return verifiers


def pair_of(
    models: list[BaseFairseqModel], verifier: TransformerModelBase | None
) -> tuple[TransformerModelBase, Drafter]:
    """Return verifier and drafter among models; ``verifier`` stands in for a missing one."""
    drafters = [model for model in models if isinstance(model, Drafter)]
    verifiers = verifiers_of(models, verifier)
    if len(drafters) != 1 or len(verifiers) != 1:
        raise ConfigError(
            "speculative decoding takes one drafter and one verifier, not "
            f"{len(drafters)} and {len(verifiers)}"
        )
    return verifiers[0], drafters[0]


def speculative_generator(
    verifier: TransformerModelBase,
    drafter: Drafter,
    options: Namespace,
    trains: bool,
) -> SpeculativeGenerator:
    """Return a generator of models that fairseq has loaded.

    Args:
        options: those of :func:`generation_options`.
        trains: it is for the validation of a training.
    """
    rule = choose_rule(vars(options))
    limits = GenerationLimits.from_config(options)
    controller = controller_of(vars(options))
    if trains and isinstance(controller, Auto):
        # Drafters are compared by the accepted tokens of whole blocks.
        controller = Constant()
    head = None
    path = getattr(controller, "acceptance_head", None)
    if path is not None:
        head = load_head(path, drafter, Scoring.of(rule, limits).values, options.block_size).to(
            next(drafter.parameters()).device
        )
    return build_generator(
        verifier,
        drafter,
        verifier.decoder.dictionary,
        block_size=options.block_size,
        rule=rule,
        limits=limits,
        controller=controller,
        head=head,
        engines=_engines(drafter, options, trains, controller.drafts, rule == StrictRule()),
    )


def searched_models(
    models: list[BaseFairseqModel], options: Namespace, trains: bool
) -> EngineModel | list[BaseFairseqModel]:
    """Return what fairseq's search asks: verifiers whose steps an engine runs; or the models as
    they are, where steps do not say what the options ask for."""
    for name, flag in OF_STOCK_MODELS.items():
        if getattr(options, name, None) not in (None, False):
            if options.engine not in ("auto", EagerEngine.name):
                raise ValueError(f"{flag}: not by --engine {options.engine}; give --engine eager")
            return models
    return engine_model(models, _engines(models[0], options, trains, False, False).verifier)


def _engines(
    model: BaseFairseqModel, options: Namespace, trains: bool, drafts: bool, strict: bool
) -> Engines:
    parameter = next(model.parameters())
    dtype = str(parameter.dtype).removeprefix("torch.")
    if trains:
        # To compile models in training would not pay.
        return Engines.both(EagerEngine(dtype))
    name = str(options.engine)
    precision = str(options.precision or dtype)
    if name == "auto" and parameter.dtype != torch.float32:
        name = "eager"
    device = str(parameter.device)
    drafts_in = None
    if drafts:
        drafts_in = precision_of_drafts(options.drafter_precision, strict, name, precision, device)
    engines = choose_engines(name, precision, drafts_in, device)
    if engines.verifier.dtype != parameter.dtype:
        raise ValueError(
            f"--engine {engines.verifier.name} --precision {precision}: is not for models in "
            f"{dtype}; fairseq's --fp16 says what they are loaded in"
        )
    return engines
