"""A random verifier of six types, its outputs, and drafters for it."""

from __future__ import annotations

import math
from functools import cache
from unittest.mock import patch

import pytest
import torch
from conftest import make_batch, make_dictionary, make_task, make_verifier

from helpers.models.drafters import make_block, make_causal
from specdec_plugins.decoding.acceptance import SamplingRule
from specdec_plugins.host.fairseq_types import Sample

Output = tuple[int, ...]

DICTIONARY = make_dictionary(2)
EOS, PAD = DICTIONARY.eos(), DICTIONARY.pad()
TASK = make_task(DICTIONARY)
VERIFIER = make_verifier(TASK, seed=3)
TASK.verifier = VERIFIER
TINY_DRAFTERS = {
    "block": make_block(TASK, seed=1),
    "causal": make_causal(TASK, seed=1, verifier_features=True, previous_token_head=True),
}
SOURCE = make_batch([5], vocabulary=len(DICTIONARY))["net_input"]


def sample_of(rows: int) -> Sample:
    """The same sentence in every row."""
    tokens = SOURCE["src_tokens"].expand(rows, -1)
    return {"net_input": {"src_tokens": tokens, "src_lengths": torch.full((rows,), 5)}}


@cache
def distribution(
    length: int, temperature: float, sampling: SamplingRule, penalty: float = 1.0
) -> dict[Output, float]:
    """The verifier's outputs of at most ``length`` tokens and EOS, by going through all of them.

    ``penalty``: of tokens that the output has already.
    """
    outputs: dict[Output, float] = {}
    # fairseq attends to the source by float32 probabilities, whatever the model is in.
    in_double = patch("fairseq.utils.softmax", lambda x, dim, onnx_trace=False: x.softmax(dim))
    open_prefixes: dict[Output, float] = {(): 1.0}
    for position in range(length + 1):
        longer: dict[Output, float] = {}
        for prefix, chance in open_prefixes.items():
            with torch.no_grad(), in_double:
                logits, _ = VERIFIER(**SOURCE, prev_output_tokens=torch.tensor([[EOS, *prefix]]))
            scores = logits[0, -1]
            for token in set(prefix):
                scores[token] *= penalty if scores[token] < 0 else 1 / penalty
            lprobs = (scores / temperature).log_softmax(-1)
            lprobs[PAD] = -math.inf
            if position < 1:
                lprobs[EOS] = -math.inf
            if position == length:
                lprobs[torch.arange(len(lprobs)) != EOS] = -math.inf
            for token, p in enumerate(sampling.probabilities(lprobs).tolist()):
                if p > 0:
                    (outputs if token == EOS else longer)[(*prefix, token)] = chance * p
        open_prefixes = longer
    assert sum(outputs.values()) == pytest.approx(1)
    return outputs
