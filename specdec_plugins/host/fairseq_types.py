"""What fairseq hands around as dictionaries, by name. No fairseq in here."""

from __future__ import annotations

from typing import TypedDict

from torch import Tensor

NetInput = dict[str, Tensor]
"""What a model reads of a batch: ``src_tokens`` and ``src_lengths``."""
EncoderOut = dict[str, list[Tensor]]
"""An encoder's output."""
LogOutput = dict[str, float | Tensor]
"""What a training step logs; sums, on the device."""


class Sample(TypedDict, total=False):
    """A batch, and what the task tells the model and the criterion with it."""

    id: Tensor
    nsentences: int
    ntokens: int
    net_input: NetInput
    target: Tensor
    cuts: Tensor
    seeds: Tensor
    glancing_ratio: float
