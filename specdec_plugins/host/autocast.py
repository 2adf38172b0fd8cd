"""Training on a CPU with matrix products of a shorter type."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from fairseq.models import BaseFairseqModel
from torch.nn.attention import SDPBackend, sdpa_kernel

from specdec_plugins.host.fairseq_types import Sample

SHORT = 128
"""Sentences of up to so many tokens are attended to by plain matrix products. Forward and backward
pass of torch's fused CPU kernel take 1.15 to 6 times as long in bfloat16 (100 to 10 tokens, torch
2.13, AVX-512); at 250 tokens it is the quicker one."""


@contextmanager
def autocast(name: str, model: BaseFairseqModel, sample: Sample) -> Iterator[None]:
    """Forward and backward pass of a batch as ``--autocast`` asks for; parameters stay float32.

    Raises:
        ValueError: the model is not one of float32 parameters on the CPU.
    """
    parameter = next(model.parameters())
    if parameter.device.type != "cpu" or parameter.dtype != torch.float32:
        raise ValueError(
            f"--autocast {name}: is for training on the CPU in float32 (--cpu, without "
            "--fp16 and --bf16); on a GPU use --fp16 or --amp"
        )
    longest = max(sample["net_input"]["src_tokens"].size(1), sample["target"].size(1))
    kernels = [SDPBackend.MATH]
    if longest > SHORT:
        kernels = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
    with torch.autocast("cpu", dtype=getattr(torch, name)), sdpa_kernel(kernels):
        yield
