"""Types of fairseq's dictionaries. No fairseq in here."""

from __future__ import annotations

from typing import TypedDict

from torch import Tensor

#: Tensors of a batch that a model reads: ``src_tokens`` and ``src_lengths``.
NetInput = dict[str, Tensor]
#: An encoder's output.
EncoderOut = dict[str, list[Tensor]]
#: Sums that a training step logs, on the device.
LogOutput = dict[str, float | Tensor]


class Sample(TypedDict, total=False):
    """A batch, with the task's additions for the model and the criterion."""

    id: Tensor
    nsentences: int
    ntokens: int
    net_input: NetInput
    target: Tensor
    constraints: Tensor
    cuts: Tensor
    seeds: Tensor
    glancing_ratio: float
