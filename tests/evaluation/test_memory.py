"""What work adds to the memory of this process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specdec_plugins.evaluation import memory
from specdec_plugins.evaluation.memory import MemoryGrowth, peak_memory

SIZE = 64 * 2**20
resettable = pytest.mark.skipif(
    MemoryGrowth("cpu").now() is None, reason="this system does not let a peak be set back"
)


@resettable
def test_what_is_kept_and_what_was_there_for_a_while() -> None:
    growth = MemoryGrowth("cpu")
    kept = torch.ones(SIZE // 4)
    passing = torch.ones(SIZE // 2)
    del passing
    now, most = growth.now(), growth.most()
    assert now is not None
    assert most is not None
    assert len(kept) == SIZE // 4
    assert 0.9 * SIZE < now < 1.5 * SIZE
    assert 2.9 * SIZE < most < 3.5 * SIZE
    # What came before is no part of it.
    later = MemoryGrowth("cpu").most()
    assert later is not None
    assert later < 0.5 * SIZE


def test_a_peak_is_no_less_than_what_is_held() -> None:
    held = torch.ones(SIZE // 4)
    assert peak_memory() > held.numel() * 4


def test_where_nothing_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "STATUS", tmp_path / "none")
    assert peak_memory() > SIZE // 4
    assert MemoryGrowth("cpu").most() is None
    monkeypatch.setattr(memory, "RESET", tmp_path / "no" / "file")
    assert MemoryGrowth("cpu").now() is None
