"""Models are built without memory, and without torch's compiler."""

from __future__ import annotations

import sys

from scripts_here import run


def test_shapes_without_memory_or_values() -> None:
    """Of any size; in a new process, where nothing else has imported the compiler."""
    script = """
import sys
import torch
from fairseq.modules import PositionalEmbedding
from torch import nn
from specdec_plugins.host.checkpoints import without_memory
with without_memory():
    table = PositionalEmbedding(10**12, 8, 1)
    embedding = nn.Embedding(10**12, 8, 1)
    embedding.weight.normal_(std=2)
    linear = nn.Linear(8, 8)
print(table.weights.shape, embedding.weight.shape)
print(linear.weight.is_meta, "torch._dynamo" in sys.modules)
table, weights = PositionalEmbedding(5, 8, 1).weights, torch.empty(1000).normal_()
print(table[2].any().item(), weights.std().item() > 0.5)
"""
    done = run(sys.executable, "-c", script, status=0)
    size = "torch.Size([1000000000002, 8]) torch.Size([1000000000000, 8])"
    assert done.stdout.splitlines() == [size, "True False", "True True"]
