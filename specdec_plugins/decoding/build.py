"""The factory of generators, and the made-up sentences that warm them up."""

from __future__ import annotations

import logging
from copy import deepcopy
from dataclasses import asdict
from typing import TYPE_CHECKING

import torch

from specdec_plugins.decoding.acceptance import AcceptanceRule, StrictRule
from specdec_plugins.decoding.controllers.base import Controller, Head
from specdec_plugins.decoding.controllers.simple import Auto, Constant, Tree
from specdec_plugins.decoding.drafting import LONGEST, MakeSource
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.kernels import wait_for
from specdec_plugins.decoding.limits import MAX_LENGTHS, GenerationLimits
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.decoding.steps.drafter import CachedDrafter
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.engine import Engine, Engines
from specdec_plugins.host.fairseq_types import Sample
from specdec_plugins.models.drafter import Drafter

if TYPE_CHECKING:
    from fairseq.data import Dictionary
    from fairseq.models.transformer import TransformerModelBase

logger = logging.getLogger(__name__)

#: Nodes of the recommended trees on a GPU.
GPU_NODES = 32
#: Source tokens of the made-up sentences with which each size is recorded.
RECORDED = (32, 64, 128)


def recommended(
    controller: Controller, drafter: Drafter, rule: AcceptanceRule, engine: Engine
) -> Controller:
    """Return the controller, or the recommended one in place of ``auto``.

    On a CPU drafts pay for few rows only (docs/benchmarks.md, "Batches"): for one with ONNX
    Runtime, for two with PyTorch. Relaxed output is not to depend on the batch. On a GPU drafts pay
    at every batch size, and 32 nodes cost what 8 do (docs/engines.md, "GPUs").
    """
    if not isinstance(controller, Auto):
        return controller
    options = asdict(controller)
    default = options["tree_nodes"] == Tree.tree_nodes
    if default and options["redraft_below"] == Tree.redraft_below and not drafter.decoder.causal:
        # The published drafter, with whole blocks as published.
        return Constant()
    if default and engine.recorder is not None:
        options["tree_nodes"] = GPU_NODES
    on_cpu = next(drafter.parameters()).device.type == "cpu"
    if controller.max_rows is None and rule.lossless and on_cpu:
        options["max_rows"] = engine.max_drafted_rows
    logger.info("--controller auto: %s", Tree(**options))
    return Tree(**options)


def build_generator(
    verifier: TransformerModelBase,
    drafts: Drafter | MakeSource | None,
    tgt_dict: Dictionary,
    *,
    block_size: int | None = None,
    rule: AcceptanceRule = StrictRule(),
    limits: GenerationLimits = GenerationLimits(),
    controller: Controller = Constant(),
    head: Head | None = None,
    engines: Engines | None = None,
) -> SpeculativeGenerator:
    """Return a generator; without drafts, of plain AR.

    Defaults are the drafter's block size, strict acceptance of whole blocks, and PyTorch. The
    controller itself stays as it is.

    Raises:
        ValueError: a block size or a controller that does not fit the drafter.
        EngineError: a verifier that cannot be run exactly.
    """
    engines = engines or Engines.both(EagerEngine())
    drafting: tuple[CachedDrafter | MakeSource, Controller] | None = None
    if drafts is not None and controller.drafts:
        if isinstance(drafts, Drafter):
            slots = drafts.slots(block_size)
            controller = recommended(controller, drafts, rule, engines.verifier)
            drafts.attach_verifier(verifier)
            drafting = CachedDrafter(drafts, engines.drafter), controller.ready(slots, head)
        else:
            drafting = drafts, controller.ready(block_size or LONGEST, head)
    return SpeculativeGenerator(
        verifier, drafting, tgt_dict, rule=rule, limits=limits, engine=engines.verifier
    )


def warm_up(generator: SpeculativeGenerator, source: Dictionary, rows: int, positions: int) -> None:
    """Decode made-up batches of ``rows`` sentences in common sizes, for which engines and loops
    compile, and of at most ``positions`` source tokens.

    Controllers, statistics and torch's random numbers stay as they were.
    """
    device = next(generator.model.parameters()).device
    if not generator.controller.real:
        return
    if device.type == "cpu":
        batches = [(rows, 8, 8)]
    else:
        # A step is recorded for each number of rows to which a batch shrinks.
        halves = [rows >> n for n in range(rows.bit_length())]
        batches = [(count, length, 1) for length in RECORDED for count in halves]
    seeded = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=seeded):
        for count, length, limit in batches:
            limit = max(min(limit, generator.positions - 1), generator.limits.min_len)
            batch = made_up(source, count, min(length, positions), device)
            batch["net_input"][MAX_LENGTHS] = torch.full((count,), limit, device=device)
            generator.decode(batch, deepcopy(generator.controller), DecodingStatistics())
    wait_for(device)


def made_up(
    source: Dictionary, rows: int, length: int, device: torch.device | None = None
) -> Sample:
    """Return a batch of sentences of so many tokens, EOS included, each of other words."""
    words = len(source) - source.nspecial
    counts = torch.arange(rows * length, device=device)
    tokens = source.nspecial + counts.view(rows, length) % max(words, 1)
    tokens[:, -1] = source.eos()
    return {
        "id": counts[:rows],
        "net_input": {
            "src_tokens": tokens,
            "src_lengths": torch.full((rows,), length, device=device),
        },
    }
