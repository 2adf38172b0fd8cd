"""Memory of this process: the most that it has had, and what a part of its work adds to it.

Systems of a sweep share a process. What one of them takes is then what loading it added to the
memory in use, and the most that decoding added to that. On a CPU that is resident memory, which
Linux tells, with a peak that can be set back. It is rough: what one system gave back another may
use without the process growing. ``specdec-benchmark`` gives each a process of its own.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from types import ModuleType

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_memory() -> int:
    """Return the most bytes of memory that this process has had, or since its peak was set back."""
    # Linux's ru_maxrss begins with that of the process that started this one.
    found = _status("VmHWM")
    if found is not None:
        return found
    # Only macOS counts in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class MemoryGrowth:
    """What is added to memory from now on."""

    def __init__(self, device: str) -> None:
        """``device``: on a GPU it is the memory of torch's tensors there that counts."""
        self._gpu = device.startswith("cuda")
        self._before = self._begin()

    def _begin(self) -> int | None:
        """Set the peak back to what is in use, which is returned."""
        if self._gpu:
            cuda().reset_peak_memory_stats()
            return cuda().memory_allocated()
        try:
            RESET.write_text("5")  # of VmHWM: man 5 proc
        except OSError:
            return None
        return _status("VmRSS")

    def now(self) -> int | None:
        """Bytes more than in the beginning; None where that cannot be known."""
        return self._more(cuda().memory_allocated() if self._gpu else _status("VmRSS"))

    def most(self) -> int | None:
        """Return the most bytes more than in the beginning so far; None where that cannot be
        known."""
        return self._more(cuda().max_memory_allocated() if self._gpu else _status("VmHWM"))

    def _more(self, found: int | None) -> int | None:
        if found is None or self._before is None:
            return None
        return max(0, found - self._before)


def cuda() -> ModuleType:
    """torch's, which is imported only where it is needed: not every system is torch's."""
    import torch

    return torch.cuda


def _status(name: str) -> int | None:
    """Bytes, of a field of this process's status; None where there is none."""
    try:
        lines = STATUS.read_text("utf-8").splitlines()
    except OSError:
        return None
    return next((int(s.split()[1]) * 1024 for s in lines if s.startswith(f"{name}:")), None)
