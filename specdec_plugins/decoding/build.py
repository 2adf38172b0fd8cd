"""The factory of generators, for all doors."""

from __future__ import annotations

import logging
from dataclasses import fields
from typing import TYPE_CHECKING

from specdec_plugins.decoding.acceptance import AcceptanceRule, StrictRule
from specdec_plugins.decoding.controllers.base import Controller, Head
from specdec_plugins.decoding.controllers.simple import Auto, Constant, Tree
from specdec_plugins.decoding.drafter_alone import DrafterAlone
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.steps.drafter import CachedDrafter
from specdec_plugins.engines.cuda_graphs import CudaGraphsEngine
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.engine import Engine, Engines
from specdec_plugins.models.drafter import Drafter

if TYPE_CHECKING:
    from fairseq.data import Dictionary
    from fairseq.models.transformer import TransformerModelBase

logger = logging.getLogger(__name__)

GPU_NODES = 32
"""Nodes of the recommended trees on a GPU."""


def checked_block_size(drafter: Drafter, block_size: int | None) -> int:
    """Return the block size to use: the one asked for, or by default the drafter's.

    Raises:
        ValueError: the drafter was not trained for so many slots.
    """
    trained = drafter.block_size
    size = trained if block_size is None else block_size
    if not 1 <= size <= trained:
        trained_for = f"the drafter was trained for blocks of 1 to {trained}"
        raise ValueError(f"--block-size {size}: {trained_for}")
    return size


def recommended(
    controller: Controller, drafter: Drafter, rule: AcceptanceRule, engine: Engine
) -> Controller:
    """Return the controller, or the recommended one in place of ``auto``.

    On a CPU drafts pay for few rows only (docs/benchmarks.md, "Batches"): for one with OpenVINO,
    for two with PyTorch. Relaxed output is not to depend on the batch. On a GPU drafts pay at every
    batch size, and 32 nodes cost what 8 do (docs/engines.md, "GPUs").
    """
    if not isinstance(controller, Auto):
        return controller
    nodes, max_rows = controller.tree_nodes, controller.max_rows
    is_default = (nodes, controller.redraft_below) == (Tree.tree_nodes, Tree.redraft_below)
    if is_default and not drafter.decoder.causal:
        # The published drafter, with whole blocks as published.
        return Constant(min_draft=controller.min_draft, max_draft=controller.max_draft)
    if nodes == Tree.tree_nodes and isinstance(engine, CudaGraphsEngine):
        nodes = GPU_NODES
    on_cpu = next(drafter.parameters()).device.type == "cpu"
    if max_rows is None and rule.lossless and on_cpu:
        max_rows = 2 if engine.sizes.exact else 1
    options = {option.name: getattr(controller, option.name) for option in fields(Tree)}
    return Tree(**{**options, "tree_nodes": nodes, "max_rows": max_rows})


def build_generator(
    verifier: TransformerModelBase,
    drafter: Drafter | None,
    tgt_dict: Dictionary,
    *,
    block_size: int | None = None,
    rule: AcceptanceRule | None = None,
    limits: GenerationLimits | None = None,
    controller: Controller | None = None,
    head: Head | None = None,
    engines: Engines | None = None,
) -> SpeculativeGenerator:
    """Return a generator; without a drafter, of plain AR.

    Defaults are the drafter's block size, strict acceptance of whole blocks, and PyTorch.

    Raises:
        ValueError: a block size that the drafter was not trained for, or a controller that does not
            fit it.
        UnsupportedModelError: a verifier that cannot be run exactly.
    """
    controller = controller or Constant()
    engines = engines or Engines.both(EagerEngine())
    rest = rule, limits, engines.verifier
    if drafter is None or not controller.drafts:
        return SpeculativeGenerator(verifier, None, tgt_dict, None, *rest)
    block_size = checked_block_size(drafter, block_size)
    if isinstance(controller, Auto):
        controller = recommended(controller, drafter, rule or StrictRule(), engines.verifier)
        limit = controller.max_rows if isinstance(controller, Tree) else None
        limited = "" if limit is None else f" --max-rows {limit}"
        logger.info("--controller auto: %s%s", controller.name, limited)
    drafter.attach_verifier(verifier)
    cached, controller = CachedDrafter(drafter, engines.drafter), controller.ready(block_size, head)
    return SpeculativeGenerator(verifier, cached, tgt_dict, controller, *rest)


def build_drafter_alone(
    drafter: Drafter,
    verifier: TransformerModelBase | None,
    tgt_dict: Dictionary,
    block_size: int | None = None,
    limits: GenerationLimits | None = None,
    engines: Engines | None = None,
) -> DrafterAlone:
    """Return a generator that commits drafts unverified; it ignores a repetition penalty.

    Raises:
        ValueError: a block size that the drafter was not trained for, or no verifier, where the
            drafter reads its encoder or its states.
    """
    if verifier is not None:
        drafter.attach_verifier(verifier)
    size = checked_block_size(drafter, block_size)
    engines = engines or Engines.both(EagerEngine())
    return DrafterAlone(drafter, tgt_dict, size, limits or GenerationLimits(), engines)
