"""The machine that this runs on, as far as it must be known."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

ABILITIES = (
    ("amx_tile",),
    ("avx512_vnni", "avx512f", "avx2", "sve", "asimd"),
    ("avx512_bf16",),
)
"""What kernels are chosen by, under Linux's names: of each group the first that there is, which is
the fastest, counts."""
OURS = {"amx_tile": "amx", "avx512f": "avx512", "asimd": "neon"}
BRAND = re.compile(r"\((?:R|TM)\)|\b(?:CPU|Processor)\b|@.*|\d+-Core")
"""The parts of a processor's name that tell nothing of its kind."""


def give_back() -> None:
    """Give memory that is free back to the system, where the C library can: it keeps what was freed
    between things that are in use, which after loading models is 100 MiB."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


@cache
def processor_name() -> str:
    """Return the processor, named by what it can do: ``AMD EPYC (avx2, L3 8 MiB)``.

    What its brand alone says is no help: of one brand some processors have units that multiply
    matrices, and others wait for arithmetic. Where the system does not tell, parts are missing.
    """
    try:
        info = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        info = ""
    try:
        size = Path("/sys/devices/system/cpu/cpu0/cache/index3/size").read_text("utf-8")
    except OSError:
        size = ""
    return _describe(info, size.strip()) or platform.processor() or platform.machine()


def _describe(info: str, size: str) -> str:
    """Return the name.

    Args:
        info: what Linux says of its processors; may be empty.
        size: of the cache of the third level, as Linux writes it (``8192K``); may be empty.
    """
    entries = dict(re.findall(r"^([^:\n]*\S)\s*: *(.*)$", info, re.M))
    brand = " ".join(BRAND.sub(" ", entries.get("model name", platform.machine())).split())
    flags = set((entries.get("flags") or entries.get("Features") or "").split())
    fastest = (next((name for name in group if name in flags), None) for group in ABILITIES)
    abilities = [OURS.get(name, name) for name in fastest if name]
    if kib := re.fullmatch(r"(\d+)K", size):
        abilities.append(f"L3 {int(kib[1]) / 1024:g} MiB")
    return f"{brand} ({', '.join(abilities)})" if abilities else brand


def cores() -> int:
    """Return the processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_cores(seconds: float = 0.2) -> int:
    """Return how many of these processors nobody else computes on: at least 1.

    Processes that yield to others (``nice``) do not count. Where the system does not tell, it is
    all of them.

    Args:
        seconds: for how long to look.
    """
    before = _busy_seconds()
    time.sleep(seconds)
    after = _busy_seconds()
    if before is None or after is None:
        return cores()
    return max(1, round(cores() - (after - before) / seconds))


def _busy_seconds() -> float | None:
    """Return how long the processors that this process may use have computed; None where nobody
    tells."""
    try:
        lines = Path("/proc/stat").read_text("utf-8").splitlines()
        mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        ticks = [line.split()[1:9] for line in lines if line.split()[0] in mine]
        # Of user, nice, system, idle, waiting, interrupts of two kinds, and what other guests take.
        busy = sum(int(part[place]) for part in ticks for place in (0, 2, 5, 6, 7))
        return busy / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return None


def python_path() -> str:
    """Return the ``PYTHONPATH`` of processes that import the package which this one has
    imported."""
    places = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(filter(None, places))


def python_program(code: str, *arguments: object) -> list[str]:
    """Return the command that runs Python code, and imports nothing from the current folder."""
    safe = f"import sys; sys.path[:] = filter(None, sys.path)\n{code}"
    return [sys.executable, "-c", safe, *map(str, arguments)]


def cache_folder() -> Path:
    """Return the folder of what was measured or compiled once; it need not exist."""
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache) / "specdec"
    return Path(os.path.expanduser("~")) / ".cache" / "specdec"


def make_cache_folder() -> None:
    """Make the cache folder, the user's own; where it cannot be made, writing to it fails."""
    with suppress(OSError):
        cache_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
