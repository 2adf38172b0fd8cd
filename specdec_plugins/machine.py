"""The machine that this runs on, as far as it must be known."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def processor_name() -> str:
    """The processor's name, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def cores() -> int:
    """The processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cache_folder() -> Path:
    """What was measured or compiled once is kept in here; it need not exist, and where nobody knows
    a home it cannot."""
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache) / "specdec"
    try:
        return Path.home() / ".cache" / "specdec"
    except RuntimeError:
        return Path(os.devnull) / "specdec"
