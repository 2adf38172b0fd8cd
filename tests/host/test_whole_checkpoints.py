"""A checkpoint that fairseq copies is whole, or what was there before."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from fairseq.file_io import PathManager


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
