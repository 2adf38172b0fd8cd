"""What was compiled, kept on disk for the next run. No fairseq in here."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdec_plugins.files.cache import keep, read_kept, trim
from specdec_plugins.files.ownership import check_owner
from specdec_plugins.machine import cache_folder, processor_name

logger = logging.getLogger(__name__)

ACCIDENTAL = re.compile(r"___torch_mangle_\d+\.?|#.*")
"""The parts of a printed graph that tell where its code stands and what has been traced before."""


class CompiledFiles:
    """Files named by all that is compiled: the computation, its weights, versions, settings and
    processor."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        """``settings``: what the result depends on beside the computation and this machine."""
        about = {**settings, "torch": torch.__version__, "processor": processor_name()}
        self._about = json.dumps(about, sort_keys=True).encode()
        self._folder = cache_folder() / "compiled"

    def path(self, fingerprint: str, sizes: object = None) -> Path:
        """Return the file of a computation of that fingerprint, which need not exist.

        ``sizes``: what it is compiled for.
        """
        digest = hashlib.sha256(fingerprint.encode() + json.dumps(sizes).encode())
        return self._folder / f"{digest.hexdigest()[:32]}.bin"

    def fingerprint(self, traced: torch.jit.ScriptModule) -> str:
        """Return what tells a traced computation and its weights from others, compiled like
        this."""
        return self.digest(ACCIDENTAL.sub("", str(traced.inlined_graph)), _tensors(traced))

    def digest(self, described: str, tensors: Iterable[Tensor]) -> str:
        """Return what tells a computation from others: how it is described, and its weights."""
        digest = hashlib.sha256(self._about)
        digest.update(described.encode())
        for tensor in tensors:
            digest.update(str(tensor.dtype).encode() + str(list(tensor.shape)).encode())
            digest.update(tensor.detach().contiguous().numpy().data)
        return digest.hexdigest()

    def keeps(self, fingerprint: str) -> bool:
        """Return whether there is a file of it, for inputs of any sizes, that can be used."""
        with suppress(OSError):
            check_owner(self.path(fingerprint))
            return True
        return False

    def load(self, path: Path) -> bytes | None:
        """Return what was saved under this name; None if there is nothing, and, with a warning, if
        it is damaged, was saved under another one, or somebody else can have written it."""
        try:
            content = read_kept(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            _warn_once(f"{error.filename or path}: cannot be used ({error.strerror}); compiling")
            return None
        digest, compiled = content[:32], content[32:]
        if _digest(path, compiled) != digest:
            logger.warning("%s: is damaged, or another's; compiling anew", path)
            return None
        with suppress(OSError):
            os.utime(path)  # What is used is kept for longer.
        return compiled

    def save(self, path: Path, compiled: bytes) -> None:
        """Keep it, whole or not at all, in place of what was not used for longest if that is much;
        where it cannot be, a warning says so."""
        try:
            keep(path, _digest(path, compiled) + compiled)
            trim(self._folder)
        except OSError as error:
            _warn_once(f"{path.parent}: cannot be written ({error.strerror}); not kept")


def _digest(path: Path, compiled: bytes) -> bytes:
    """Return the digest of a file, of its name, too, which is its key."""
    return hashlib.sha256(path.name.encode() + compiled).digest()


@cache
def _warn_once(message: str) -> None:
    """One warning where many files have the same fault, that of their folder."""
    logger.warning(message)


def _tensors(traced: torch.jit.ScriptModule) -> Iterator[Tensor]:
    """The weights of a traced computation: of its modules, and those that stand in its graph."""
    yield from traced.state_dict().values()
    graph: Any = traced.inlined_graph  # of whose methods torch's types know few
    for node in graph.findAllNodes("prim::Constant"):
        if node.hasAttribute("value") and node.kindOf("value") == "t":
            yield node.t("value")
