"""Training with fairseq: precisions that the machine has, and batches of all sentences."""

from __future__ import annotations

import math
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import numpy as np
import torch
from fairseq.data import LanguagePairDataset
from fairseq.models import BaseFairseqModel
from numpy.typing import NDArray
from torch.nn.attention import SDPBackend, sdpa_kernel

from specdec_plugins.host.fairseq_types import Sample

#: Tokens up to which plain matrix products attend faster: torch's fused CPU kernel takes 1.15 to 6
#: times as long in bfloat16 (100 to 10 tokens, torch 2.13, AVX-512), and is faster at 250 tokens.
SHORT = 128


@contextmanager
def autocast(name: str, model: BaseFairseqModel, sample: Sample) -> Iterator[None]:
    """Run forward and backward pass of a batch as ``--autocast`` asks; parameters stay float32."""
    parameter = next(model.parameters())
    if parameter.device.type != "cpu" or parameter.dtype != torch.float32:
        raise ValueError(
            f"--autocast {name}: is for training on the CPU in float32 (--cpu, without "
            "--fp16 and --bf16); on a GPU use --fp16 or --amp"
        )
    longest = max(sample["net_input"]["src_tokens"].size(1), sample["target"].size(1))
    kernels = [SDPBackend.MATH]
    if longest > SHORT:
        kernels.insert(0, SDPBackend.FLASH_ATTENTION)
    with torch.autocast("cpu", dtype=getattr(torch, name)), sdpa_kernel(kernels):
        yield


def refuse_precision(cfg: Namespace) -> None:
    """End a training with one line if its precision needs a device that there is not: without a GPU
    fairseq would say nothing, and train in float32."""
    if cfg.tpu is True and find_spec("torch_xla") is None:
        sys.exit(
            "fairseq-train: --bf16, --tpu: both are for a TPU, and torch_xla is not installed; on "
            "a GPU give --fp16 or --amp, on a CPU --autocast bfloat16"
        )
    # Without a parsed command line the values are names of fairseq's options, not bools.
    on_cpu = cfg.cpu is True or not torch.cuda.is_available()
    for name in ("fp16", "amp"):
        if on_cpu and getattr(cfg, name) is True and cfg.memory_efficient_fp16 is not True:
            sys.exit(
                f"fairseq-train: --{name}: needs a GPU; turn off a recipe's by --no-{name}; "
                "on a CPU give --autocast bfloat16"
            )


class WholePairs(LanguagePairDataset):
    """fairseq's dataset, without its loss of sentences.

    fairseq 0.12.3 leaves out a last batch whose size is no multiple of
    ``--required-batch-size-multiple``, which is 8 by default.
    """

    #: Masked slots that are computed with each sentence; ``--max-tokens`` counts them too.
    slots = 0
    #: ``--max-tokens``; a sentence that with its slots has more is a batch alone.
    max_tokens = math.inf

    @classmethod
    def adopt(cls, pairs: LanguagePairDataset, slots: int) -> None:
        """Make such a dataset of fairseq's, whose function takes no other class."""
        pairs.__class__ = cls
        pairs.slots = slots

    def num_tokens_vec(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tokens of n sentences, ``(n,)``, each of its longer side, for
        ``--max-tokens``."""
        sources = self.src_sizes[indices]
        targets = self.tgt_sizes
        if targets is None:
            return sources
        tokens = np.maximum(sources, targets[indices])
        with_slots = np.minimum(targets[indices] + self.slots, self.max_tokens)
        return np.maximum(tokens, with_slots).astype(np.int64)

    def get_batch_shapes(self) -> list[tuple[int | None, int]] | None:
        """Return fairseq's shapes of ``--num-batch-buckets``, with the slots."""
        shapes = super().get_batch_shapes()
        return shapes and [(rows, tokens + self.slots) for rows, tokens in shapes]

    def batch_by_size(
        self, indices: NDArray[np.int64], max_tokens: int | None = None, **kwargs: object
    ) -> list[NDArray[np.int64]]:
        """Return fairseq's batches, and the sentences that it left out as a last one."""
        self.max_tokens = max_tokens or math.inf
        batches = super().batch_by_size(indices, max_tokens, **kwargs)
        count = sum(len(batch) for batch in batches)
        return batches if count == len(indices) else [*batches, indices[count:]]
