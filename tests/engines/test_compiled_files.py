"""What was compiled is kept within bounds."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from specdec_plugins.engines import compiled_files
from specdec_plugins.engines.compiled_files import LARGE, CompiledFiles, Kept
from specdec_plugins.files.cache import trim


def content(kept: Kept | None) -> bytes | None:
    return None if kept is None else kept.content.tobytes()


def test_what_is_used_outlives_what_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiled_files, "trim", partial(trim, most=300))
    files = CompiledFiles({})
    used, idle, new = (files.path(name) for name in ("used", "idle", "new"))
    for path, time in (used, 1e9), (idle, 1e9 + 1):
        files.save(path, bytes(100))
        os.utime(path, (time, time))
    assert content(files.load(used)) == bytes(100)
    files.save(new, bytes(100))
    assert [path.exists() for path in (used, idle, new)] == [True, False, True]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CompiledFiles:
    """In a folder of their own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return CompiledFiles({})


def test_a_file_of_another_key(files: CompiledFiles, caplog: pytest.LogCaptureFixture) -> None:
    """It is whole, and may be of another model of the same shapes."""
    path, other = files.path("one"), files.path("other")
    files.save(path, b"compiled")
    path.rename(other)
    assert files.load(other) is None
    assert f"{other}: is damaged, or another's; made anew" in caplog.text
    assert files.load(path) is None


@pytest.mark.parametrize("of_folder", [False, True])
def test_a_file_that_others_can_have_written(
    of_folder: bool, files: CompiledFiles, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a folder one warning is enough."""
    paths = [files.path("one"), files.path("other")]
    for path in paths:
        files.save(path, b"compiled")
        assert files.keeps(path.stem) is False  # which is no fingerprint
    assert files.keeps("one")
    shared = paths[0].parent if of_folder else paths[0]
    shared.chmod(0o777)
    loaded = [content(files.load(path)) for path in paths]
    assert loaded == [None, None if of_folder else b"compiled"]
    assert not files.keeps("one")
    (said,) = caplog.messages
    assert said.startswith(f"{shared}: cannot be used (others may write to it; make it yours")


class Twofold(nn.Module):
    """Has a weight of its own and one that stands in its graph, both large, and a small one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(LARGE // 1024, 256)
        self.matrix = torch.randn(256, LARGE // 1024)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) @ self.matrix


def traced(module: nn.Module) -> Any:
    trace: Any = torch.jit.trace  # which torch has no types for
    return trace(module.requires_grad_(False), torch.ones(2, LARGE // 1024))


def mapped(tensor: Tensor) -> str:
    """The name of the file in which a tensor lies; nothing if that is none."""
    for line in Path("/proc/self/maps").read_text("utf-8").splitlines():
        begin, end = (int(address, 16) for address in line.split()[0].split("-"))
        if begin <= tensor.data_ptr() < end:
            return Path(line.split()[5]).name if line.endswith(".weights") else ""
    return ""


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="this is not Linux")
def test_large_weights_lie_in_files(files: CompiledFiles, caplog: pytest.LogCaptureFixture) -> None:
    """They are what they were, also where a file was damaged, and may be changed."""
    module = Twofold()
    computation, x = traced(module), torch.randn(2, LARGE // 1024)
    expected, fingerprint = module(x), files.fingerprint(computation)
    folder = files.path("").parent
    for damaged in (False, True):
        if damaged:
            for file in list(folder.iterdir()):
                file.unlink()  # What is mapped stays.
                file.write_bytes(b"")
        files.map_weights(computation)
        assert ("is damaged" in caplog.text) is damaged
        assert torch.equal(module(x), expected)
        assert torch.equal(computation(x), expected)
        large = {mapped(module.linear.weight), mapped(module.matrix)}
        assert large == {file.name for file in folder.iterdir()}
        assert len(large) == 2
        assert not mapped(module.linear.bias)
    assert files.fingerprint(computation) == fingerprint
    module.matrix.zero_()
    assert not computation(x).any()
    other = traced(Twofold())
    other.linear.weight.copy_(module.linear.weight)
    files.map_weights(other)
    assert torch.equal(other.linear.weight, module.linear.weight)
    assert len(list(folder.iterdir())) == 3


def test_weights_that_cannot_be_written_stay_in_memory(
    files: CompiledFiles, caplog: pytest.LogCaptureFixture
) -> None:
    folder = files.path("").parent
    folder.parent.mkdir()
    folder.write_text("a file where a folder should be")
    module = Twofold()
    computation, x = traced(module), torch.randn(2, LARGE // 1024)
    expected = module(x)
    files.map_weights(computation)
    assert "not kept" in caplog.text
    assert torch.equal(computation(x), expected)
