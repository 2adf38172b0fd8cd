"""Made-up sentences, decoded before the first real one."""

from __future__ import annotations

import time
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.kernels import is_host, wait_for
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.host.fairseq_types import Sample

if TYPE_CHECKING:
    from fairseq.data import Dictionary

LONGEST, RECORDED = 32, (32, 64, 128)
"""Source tokens of the longest made-up sentence, and those where each size is recorded."""


def warm_up(
    generator: SpeculativeGenerator, source: Dictionary, rows: int, positions: int
) -> float:
    """Decode made-up batches of ``rows`` sentences in common sizes, for which engines and loops
    compile, and of at most ``positions`` source tokens; return the seconds it took.

    Controllers, statistics and torch's random numbers stay as they were.
    """
    sizes, limits = generator.engines.verifier.sizes, generator.limits
    device = next(generator.model.parameters()).device
    if not generator.controller.real:
        return 0.0
    start = time.perf_counter()
    if sizes.exact and is_host(device):
        batches = [(rows, 8, 8)]
    elif sizes.exact:
        # A step is recorded for each number of rows to which a batch shrinks.
        halves = [rows >> n for n in range(rows.bit_length())]
        batches = [(count, length, 1) for length in RECORDED for count in halves]
    else:
        padded = sorted({sizes.source(tokens) for tokens in range(1, LONGEST + 1)})
        batches = [(rows, length, length) for length in padded]
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            for count, length, limit in batches:
                limit = max(min(limit, positions), limits.min_len)
                generator.limits = replace(limits, max_len_a=0, max_len_b=limit)
                batch = made_up(source, count, min(length, positions), device)
                generator.decode(batch, deepcopy(generator.controller), DecodingStatistics())
    finally:
        generator.limits = limits
    wait_for(device)
    return time.perf_counter() - start


def made_up(
    source: Dictionary, rows: int, length: int, device: torch.device | None = None
) -> Sample:
    """Return a batch of sentences of so many tokens, EOS included, each of other words."""
    words = len(source) - source.nspecial
    counts = torch.arange(rows * length, device=device)
    tokens = source.nspecial + counts.view(rows, length) % max(words, 1)
    tokens[:, -1] = source.eos()
    lengths = torch.full((rows,), length, device=device)
    return {"id": counts[:rows], "net_input": {"src_tokens": tokens, "src_lengths": lengths}}
