"""What was compiled, and the weights that it was compiled from, on disk. No fairseq in here."""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import specdec_plugins
from specdec_plugins.files.output import whole_file
from specdec_plugins.machine import cache_folder, make_cache_folder, processor_name

logger = logging.getLogger(__name__)

ACCIDENTAL = re.compile(r"___torch_mangle_\d+\.?|#.*")
"""The parts of a printed graph that tell where its code stands and what has been traced before."""

LARGE = 2**18
"""Bytes of weights that are worth a file of their own."""
DIGEST = hashlib.sha256().digest_size

Content = bytes | memoryview


class Kept:
    """What a file holds, where it is mapped into memory."""

    def __init__(self, mapped: mmap.mmap) -> None:
        self._mapped = mapped
        whole = memoryview(mapped)
        self.digest, self.content = whole[:DIGEST].tobytes(), whole[DIGEST:]

    def rest(self) -> None:
        """Let go of the memory: what is read again is read from the file."""
        self._mapped.madvise(mmap.MADV_DONTNEED)


class CompiledFiles:
    """Files named by all that is compiled: the computation, its weights, versions, settings and
    processor; and files of weights, named by what they hold."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        """``settings``: what the result depends on beside the computation and this machine."""
        about = {**settings, "torch": torch.__version__, "processor": processor_name()}
        self._about = json.dumps(about, sort_keys=True).encode()
        self._folder = cache_folder() / "compiled" / specdec_plugins.__version__

    def path(self, fingerprint: str, sizes: object = None) -> Path:
        """Return the file of a computation of that fingerprint, which need not exist.

        ``sizes``: what it is compiled for.
        """
        digest = hashlib.sha256(fingerprint.encode() + json.dumps(sizes).encode())
        return self._folder / f"{digest.hexdigest()[:32]}.bin"

    def fingerprint(self, traced: torch.jit.ScriptModule) -> str:
        """Return what tells a traced computation and its weights from others, compiled like
        this."""
        graph = traced.inlined_graph
        return self.digest(ACCIDENTAL.sub("", str(graph)), _tensors(traced, graph))

    def digest(self, described: str, tensors: Iterable[Tensor]) -> str:
        """Return what tells a computation from others: how it is described, and its weights."""
        digest = hashlib.sha256(self._about)
        digest.update(described.encode())
        for tensor in tensors:
            digest.update(str(tensor.dtype).encode() + str(list(tensor.shape)).encode())
            digest.update(_content(tensor))
        return digest.hexdigest()

    def keeps(self, fingerprint: str) -> bool:
        """Return whether there is a file of it, for inputs of any sizes."""
        return self.path(fingerprint).exists()

    def map_weights(self, traced: torch.jit.ScriptModule) -> None:
        """Let the large weights of a traced computation lie in files, if these can be written: they
        stay what they are, and take memory from when they are read. What is compiled has its own.
        """
        for tensor in _tensors(traced, traced.inlined_graph):
            if tensor.nbytes >= LARGE:
                content = _content(tensor)
                path = self._folder / f"{hashlib.sha256(content).hexdigest()[:32]}.weights"
                kept = self.load(path)
                if kept is None:
                    self.save(path, content)
                    kept = self.load(path)
                if kept is not None:
                    mapped = torch.frombuffer(kept.content, dtype=tensor.dtype)
                    tensor.data = mapped.view_as(tensor)
                    kept.rest()

    def load(self, path: Path) -> Kept | None:
        """Return what was saved under this name; None if there is nothing, or it is damaged."""
        try:
            with path.open("rb") as file:
                kept = Kept(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        except (OSError, ValueError):
            return None
        return kept if _digest(path, kept.content) == kept.digest else None

    def save(self, path: Path, content: Content) -> None:
        """Store content, whole or not at all, and remove the files of other versions."""
        make_cache_folder()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for other in self._folder.parent.iterdir():
                if other != self._folder:
                    shutil.rmtree(other, ignore_errors=True)
            with whole_file(path) as file:
                file.write(_digest(path, content))
                file.write(content)
        except OSError as error:
            _warn_once(f"{path.parent}: cannot be written ({error.strerror}); not kept")


def _digest(path: Path, content: Content) -> bytes:
    """Return the digest of a file, of its name, too, which is its key."""
    digest = hashlib.sha256(path.name.encode())
    digest.update(content)
    return digest.digest()


@cache
def _warn_once(message: str) -> None:
    """One warning where many files have the same fault, that of their folder."""
    logger.warning(message)


def _content(tensor: Tensor) -> memoryview:
    return tensor.detach().contiguous().numpy().data


def _tensors(traced: torch.jit.ScriptModule, graph: Any) -> Iterator[Tensor]:
    """The weights of a traced computation: of its modules, and those that stand in its graph, of
    whose methods torch's types know few."""
    yield from traced.state_dict(keep_vars=True).values()
    for node in graph.findAllNodes("prim::Constant"):
        if node.hasAttribute("value") and node.kindOf("value") == "t":
            yield node.t("value")
