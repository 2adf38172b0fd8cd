"""Compiled files, and weights that lie in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import specdec_plugins
from specdec_plugins.engines.compiled_files import LARGE, CompiledFiles, Kept


def content(kept: Kept | None) -> bytes | None:
    return None if kept is None else kept.content.tobytes()


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CompiledFiles:
    """In a folder of their own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return CompiledFiles({})


def test_a_file_of_another_key_or_a_damaged_one_is_not_used(files: CompiledFiles) -> None:
    """It is whole, and may be of another model of the same shapes."""
    path, other = files.path("one"), files.path("other")
    files.save(path, b"compiled")
    assert content(files.load(path)) == b"compiled"
    path.rename(other)
    assert files.load(other) is None
    path.write_bytes(b"")
    assert files.load(path) is None


def test_files_are_the_users_own_and_of_one_version(
    files: CompiledFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = files.path("one")
    files.save(path, b"compiled")
    assert (tmp_path / "specdec").stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(specdec_plugins, "__version__", "9.9")
    CompiledFiles({}).save(CompiledFiles({}).path("one"), b"compiled")
    assert not path.exists()


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
def test_large_weights_lie_in_files(files: CompiledFiles) -> None:
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
    folder.parent.mkdir(parents=True)
    folder.write_text("a file where a folder should be")
    module = Twofold()
    computation, x = traced(module), torch.randn(2, LARGE // 1024)
    expected = module(x)
    files.map_weights(computation)
    assert "not kept" in caplog.text
    assert torch.equal(computation(x), expected)
