"""What was compiled, kept on disk for the next run. No fairseq in here."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdec_plugins.files.cache import trim
from specdec_plugins.files.whole_file import whole_file
from specdec_plugins.machine import cache_folder, processor_name

logger = logging.getLogger(__name__)

ACCIDENTAL = re.compile(r"___torch_mangle_\d+\.?|#.*")
"""In a printed graph, what tells where its code stands and what has been traced before."""


class CompiledFiles:
    """Files named by all that is compiled: the computation, its weights, versions, settings and
    processor."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        """``settings``: what the result depends on beside the computation and this machine."""
        about = {**settings, "torch": torch.__version__, "processor": processor_name()}
        self._about = json.dumps(about, sort_keys=True).encode()
        self._folder = cache_folder() / "compiled"

    def path(self, fingerprint: str, sizes: object = None) -> Path:
        """The file of a computation of that fingerprint, which need not exist.

        ``sizes``: what it is compiled for.
        """
        digest = hashlib.sha256(fingerprint.encode() + json.dumps(sizes).encode())
        return self._folder / f"{digest.hexdigest()[:32]}.bin"

    def fingerprint(self, traced: torch.jit.ScriptModule) -> str:
        """What tells a traced computation and its weights from others, compiled like this."""
        return self.digest(ACCIDENTAL.sub("", str(traced.inlined_graph)), _tensors(traced))

    def digest(self, described: str, tensors: Iterable[Tensor]) -> str:
        """What tells a computation from others: how it is described, and its weights."""
        digest = hashlib.sha256(self._about)
        digest.update(described.encode())
        for tensor in tensors:
            digest.update(str(tensor.dtype).encode() + str(list(tensor.shape)).encode())
            digest.update(tensor.detach().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def load(self, path: Path) -> bytes | None:
        """What was saved; None, with a warning, if it is damaged, and if there is nothing."""
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            logger.warning("%s: cannot be read (%s); compiling anew", path, error.strerror)
            return None
        digest, compiled = content[:32], content[32:]
        if hashlib.sha256(compiled).digest() != digest:
            logger.warning("%s: is damaged; compiling anew", path)
            return None
        with suppress(OSError):
            os.utime(path)  # What is used is kept for longer.
        return compiled

    def save(self, path: Path, compiled: bytes) -> None:
        """Keep it, whole or not at all, in place of what was not used for longest if that is much;
        where it cannot be, a warning says so."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(path) as file:
                file.write(hashlib.sha256(compiled).digest() + compiled)
            trim(self._folder)
        except OSError as error:
            logger.warning("%s: cannot be written (%s); not kept", path, error.strerror)


def _tensors(traced: torch.jit.ScriptModule) -> Iterator[Tensor]:
    """The weights of a traced computation: of its modules, and those that stand in its graph."""
    yield from traced.state_dict().values()
    graph: Any = traced.inlined_graph  # of whose methods torch's types know few
    for node in graph.findAllNodes("prim::Constant"):
        if node.hasAttribute("value") and node.kindOf("value") == "t":
            yield node.t("value")
