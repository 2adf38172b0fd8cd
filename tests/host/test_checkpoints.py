"""Checkpoints that fairseq copies whole, and models that are built without memory."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from fairseq.file_io import PathManager
from fairseq.modules import PositionalEmbedding, SinusoidalPositionalEmbedding
from torch import nn

from specdec_plugins.host.checkpoints import BUILDING, without_memory


def test_a_copy_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "checkpoint_1_2.pt", tmp_path / "checkpoint_last.pt"
    source.write_bytes(b"new" * 1000)
    target.write_bytes(b"old")

    def half(read: Any, written: Any, *_: object) -> None:
        written.write(read.read(100))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", half)
        with pytest.raises(KeyboardInterrupt):
            PathManager.copy(str(source), str(target), overwrite=True)
    assert target.read_bytes() == b"old"
    assert PathManager.copy(str(source), str(target), overwrite=True)
    assert target.read_bytes() == source.read_bytes()
    assert sorted(tmp_path.iterdir()) == sorted([source, target])


def test_shapes_without_memory_or_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """And without torch's compiler, which importing takes seconds."""
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)
    monkeypatch.delitem(vars(torch), "_dynamo", raising=False)
    with without_memory():
        table = PositionalEmbedding(10**12, 8, 1)
        embedding = nn.Embedding(10**12, 8, 1)
        embedding.weight.normal_(std=2)
        linear = nn.Linear(8, 8)
    assert (table.weights.shape, embedding.weight.shape) == ((10**12 + 2, 8), (10**12, 8))
    assert linear.weight.is_meta
    assert PositionalEmbedding(5, 8, 1).weights[2].any()
    assert torch.empty(1000).normal_().std() > 0.5


def test_no_thread_builds_while_another_builds_without_memory() -> None:
    """Its positions would hold whatever lies in memory."""
    stock = SinusoidalPositionalEmbedding.get_embedding
    tables = []

    def build() -> None:
        with BUILDING:
            tables.append(SinusoidalPositionalEmbedding.get_embedding(5, 8, 1))

    with without_memory():
        thread = Thread(target=build)
        thread.start()
        thread.join(0.1)
        assert not tables
    thread.join()
    assert torch.equal(tables[0], stock(5, 8, 1))
