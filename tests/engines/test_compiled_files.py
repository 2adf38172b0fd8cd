"""Files of compiled models and of weights."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import specdec_plugins
from specdec_plugins.engines import compiled_files
from specdec_plugins.engines.compiled_files import LARGE, CompiledFiles


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CompiledFiles:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return CompiledFiles({})


def test_files_are_the_users_own_and_of_one_version(
    files: CompiledFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = files.path("a model")
    stored = files.save(path, b"compiled")
    assert stored is not None
    assert bytes(stored) == b"compiled"
    assert (tmp_path / "specdec").stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(specdec_plugins, "__version__", "9.9")
    CompiledFiles({}).save(CompiledFiles({}).path("a model"), b"compiled")
    assert not path.exists()


def test_the_oldest_files_go(files: CompiledFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_files, "FULL", 25)
    paths = [files.path(str(number)) for number in range(4)]
    for number, path in enumerate(paths):
        files.save(path, b"0123456789")
        os.utime(path, (number, number))
    assert [path.exists() for path in paths] == [False, False, True, True]


class Twofold(nn.Module):
    """A module with a large weight, another that is a constant of its graph, and a small one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(LARGE // 1024, 256)
        self.matrix = torch.randn(256, LARGE // 1024)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) @ self.matrix


def traced(module: nn.Module) -> Any:
    trace: Any = torch.jit.trace  # untyped
    return trace(module.requires_grad_(False), torch.ones(2, LARGE // 1024))


def mapped(tensor: Tensor) -> str:
    """Return the name of the file in which a tensor lies; empty if that is none."""
    for line in Path("/proc/self/maps").read_text("utf-8").splitlines():
        begin, end = (int(address, 16) for address in line.split()[0].split("-"))
        if begin <= tensor.data_ptr() < end:
            return Path(line.split()[5]).name if line.endswith(".weights") else ""
    return ""


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="this is not Linux")
def test_large_weights_lie_in_files(files: CompiledFiles) -> None:
    """They keep their values, and may be changed."""
    module = Twofold()
    computation, x = traced(module), torch.randn(2, LARGE // 1024)
    expected, fingerprint = module(x), files.fingerprint(computation)
    files.map_weights(computation)
    assert torch.equal(module(x), expected)
    assert torch.equal(computation(x), expected)
    large = {mapped(module.linear.weight), mapped(module.matrix)}
    assert large == {file.name for file in files.path("").parent.iterdir()}
    assert len(large) == 2
    assert not mapped(module.linear.bias)
    assert files.fingerprint(computation) == fingerprint
    module.matrix.zero_()
    assert not computation(x).any()
    other = traced(Twofold())
    other.linear.weight.copy_(module.linear.weight)
    files.map_weights(other)
    assert torch.equal(other.linear.weight, module.linear.weight)


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
