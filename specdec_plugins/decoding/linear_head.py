"""An acceptance head without residual blocks, read on the CPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.decoding.compiled import compiled
from specdec_plugins.models.acceptance_head import DOUBT, AcceptanceHead

# In the precision in which the head's tensor code has them.
LEAST, MOST = np.float32(DOUBT), np.float32(1 - DOUBT)


class LinearHead:
    """The probabilities of an :class:`AcceptanceHead` that has no blocks, for tensors on the CPU.

    Such a head is a weighted sum. As tensor code that is some fifteen small calls, which take
    several times as long as the sum: of a batch's states one call is made of it, and what is small
    is compiled.
    """

    def __init__(self, head: AcceptanceHead) -> None:
        """
        Raises:
            ValueError: the head has blocks.
        """
        settings = head.settings
        if settings.layers:
            raise ValueError(f"a head of {settings.layers} residual blocks is not linear")
        with torch.no_grad():
            self._weight = (head.out.weight[0] / settings.temperature).float().cpu()
            constant = head.out.bias / settings.temperature + settings.bias
            slots = constant.float().cpu().repeat(settings.block_size)
            odds = torch.zeros(2)
            if head.slots is not None:
                slots += head.slots.float().cpu() @ self._weight
            if head.confidence is not None:
                odds += self._weight @ head.confidence.weight.float().cpu()
        self._slots, self._odds = slots.numpy(), odds.numpy()
        # Compile it now, or load what was compiled: else the first batch would pay for it.
        self(torch.zeros(1, 1, settings.channels), torch.zeros(1, 1))

    def __call__(self, states: Tensor, probabilities: Tensor) -> Tensor:
        """As :meth:`AcceptanceHead.forward`, of ``(rows, slots, channels)`` states."""
        sums = states.float() @ self._weight
        read = _read(sums.numpy(), probabilities.numpy(), self._slots, self._odds)
        return torch.from_numpy(read)


@compiled
def _read(sums: Any, probabilities: Any, slots: Any, odds: Any) -> Any:
    """The sigmoid of what a state sums up to, what its slot and what its probability add to it."""
    read = sums.copy()
    for row in range(len(sums)):
        for slot in range(len(sums[row])):
            p = min(max(probabilities[row, slot], LEAST), MOST)
            logit = sums[row, slot] + slots[slot]
            logit += odds[0] * math.log(p) + odds[1] * math.log(np.float32(1) - p)
            read[row, slot] = 1 / (1 + math.exp(-logit))
    return read
