"""Compiled models, and weights, as files in the user's cache folder. No fairseq in here."""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import re
import shutil
import time
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
"""The parts of a printed graph that depend on line numbers and on earlier traces."""
LARGE = 2**18
"""Bytes of weights that are worth a file of their own."""
FULL = 2**31
"""Bytes above which files of earlier days go when new ones are written."""
DAY = 86_400
"""Seconds; younger files may belong to the same models as the new ones."""

Buffer = bytes | memoryview | mmap.mmap


class CompiledFiles:
    """Files named by a digest of the computation, its weights, versions, settings and processor.

    The files of a version replace those of the version before.
    """

    def __init__(self, settings: Mapping[str, object]) -> None:
        """``settings``: whatever else the compiled model depends on."""
        about = {**settings, "torch": torch.__version__, "processor": processor_name()}
        self._about = json.dumps(about, sort_keys=True)
        self._folder = cache_folder() / "compiled" / specdec_plugins.__version__

    def path(self, fingerprint: str, sizes: object = None) -> Path:
        """Return the file of a computation, compiled for inputs of these sizes."""
        return self._named(fingerprint.encode() + json.dumps(sizes).encode(), "bin")

    def fingerprint(self, traced: torch.jit.ScriptModule) -> str:
        """Return the digest of a traced computation and its weights."""
        graph = traced.inlined_graph
        return self.digest(ACCIDENTAL.sub("", str(graph)), _tensors(traced, graph))

    def digest(self, description: str, tensors: Iterable[Tensor]) -> str:
        """Return the digest of a computation from its description and its weights."""
        digest = hashlib.sha256(f"{self._about}{description}".encode())
        for tensor in tensors:
            digest.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
            digest.update(_content(tensor))
        return digest.hexdigest()

    def map_weights(self, traced: torch.jit.ScriptModule) -> None:
        """Map the large weights of a traced computation from files, where these can be written.

        Compiled models have copies of the weights; mapped ones take no memory until they are read.
        """
        for tensor in _tensors(traced, traced.inlined_graph):
            content = _content(tensor)
            if content.nbytes >= LARGE:
                path = self._named(content, "weights")
                stored = self.load(path) or self.save(path, content)
                if stored is not None and len(stored) == content.nbytes:
                    tensor.data = torch.frombuffer(stored, dtype=tensor.dtype).view_as(tensor)

    def load(self, path: Path) -> mmap.mmap | None:
        """Map a file; return None if there is none."""
        try:
            with path.open("rb") as file:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError):
            return None

    def save(self, path: Path, content: Buffer) -> mmap.mmap | None:
        """Write a file, whole or not at all, and map it; return None if it cannot be written."""
        make_cache_folder()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._make_room(memoryview(content).nbytes)
            with whole_file(path) as file:
                file.write(content)
        except OSError as error:
            _warn_once(f"{self._folder}: cannot be written ({error.strerror}); not kept")
        return self.load(path)

    def _named(self, content: Buffer, suffix: str) -> Path:
        return self._folder / f"{hashlib.sha256(content).hexdigest()[:32]}.{suffix}"

    def _make_room(self, size: int) -> None:
        """Remove the files of other versions, and old ones beyond the limit."""
        for other in self._folder.parent.iterdir():
            if other != self._folder:
                shutil.rmtree(other, ignore_errors=True)
        files = sorted((file.stat().st_mtime, file) for file in self._folder.iterdir())
        excess = size + sum(file.stat().st_size for _, file in files) - FULL
        for modified, file in files:
            if excess > 0 and modified < time.time() - DAY:
                excess -= file.stat().st_size
                file.unlink(missing_ok=True)


@cache
def _warn_once(message: str) -> None:
    """Warn once, however many files a folder cannot take."""
    logger.warning(message)


def _content(tensor: Tensor) -> memoryview:
    return tensor.detach().contiguous().numpy().data


def _tensors(traced: torch.jit.ScriptModule, graph: Any) -> Iterator[Tensor]:
    """Yield the weights of a traced computation's modules, and those in its graph."""
    yield from traced.state_dict(keep_vars=True).values()
    for node in graph.findAllNodes("prim::Constant"):
        if node.hasAttribute("value") and node.kindOf("value") == "t":
            yield node.t("value")
