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
    """What an :class:`AcceptanceHead` without blocks says, of tensors on the CPU.

    Such a head is a weighted sum. As tensor code that is some fifteen small calls, which take
    several times as long as the sum; compiled it is one.
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
            weight = (head.out.weight[0] / settings.temperature).float().cpu()
            constant = head.out.bias / settings.temperature + settings.bias
            slots = constant.float().cpu().repeat(settings.block_size)
            odds = torch.zeros(2)
            if head.slots is not None:
                slots += head.slots.float().cpu() @ weight
            if head.confidence is not None:
                odds += weight @ head.confidence.weight.float().cpu()
        self._weights = weight.numpy(), slots.numpy(), odds.numpy()
        # Compile now, or load what was compiled: else the first batch would pay for it.
        nothing = torch.zeros(1, 1, settings.channels), torch.zeros(1, 1)
        self(*nothing)
        self.survivors(*nothing, 0.5)

    def __call__(self, states: Tensor, probabilities: Tensor) -> Tensor:
        """As of an :class:`AcceptanceHead`; ``states`` ``(rows, slots, channels)``."""
        return torch.from_numpy(_read(*self._given(states, probabilities), self._weights))

    def survivors(self, states: Tensor, probabilities: Tensor, least: float) -> Tensor:
        """As of an :class:`AcceptanceHead`; ``states`` ``(rows, slots, channels)``."""
        given = self._given(states, probabilities)
        return torch.from_numpy(_survivors(*given, self._weights, least))

    def _given(self, states: Tensor, probabilities: Tensor) -> tuple[Any, Any]:
        # Compiled code would read on behind the end of an array.
        assert states.size(-2) <= len(self._weights[1])
        return states.float().numpy(), probabilities.numpy()


@compiled
def _probability(state: Any, probability: Any, slot: Any, weights: Any) -> Any:
    """What the head says of one slot."""
    weight, slots, odds = weights
    p = min(max(probability, LEAST), MOST)
    logit = slots[slot] + odds[0] * math.log(p) + odds[1] * math.log(np.float32(1) - p)
    for channel in range(len(weight)):
        logit += state[channel] * weight[channel]
    return np.float32(1 / (1 + math.exp(-logit)))


@compiled
def _read(states: Any, probabilities: Any, weights: Any) -> Any:
    read = np.empty_like(probabilities)
    for row in range(len(read)):
        for slot in range(len(read[row])):
            read[row, slot] = _probability(
                states[row, slot], probabilities[row, slot], slot, weights
            )
    return read


@compiled
def _survivors(states: Any, probabilities: Any, weights: Any, least: Any) -> Any:
    counts = np.zeros(len(states), np.int64)
    for row in range(len(states)):
        survival = np.float32(1)
        for slot in range(len(probabilities[row])):
            survival *= _probability(states[row, slot], probabilities[row, slot], slot, weights)
            if not survival >= least:
                break
            counts[row] += 1
    return counts
