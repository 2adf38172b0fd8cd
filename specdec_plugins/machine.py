"""Facts about the machine, and how other processes run this package."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import re
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

logger = logging.getLogger(__name__)

#: Linux's names of instructions that kernels are chosen by; of each group the first counts.
ABILITIES = (("amx_tile",), ("avx512_vnni", "avx512f", "avx2", "sve", "asimd"), ("avx512_bf16",))
OURS = {"amx_tile": "amx", "avx512f": "avx512", "asimd": "neon"}
PARENT = str(Path(__file__).parents[1])


def give_back() -> None:
    """Give free memory back to the system: after loading, MKL holds 10 MiB, the C library 100."""
    for library, function in (("libtorch_cpu.so", "mkl_serv_free_buffers"), (None, "malloc_trim")):
        with suppress(OSError, AttributeError):
            getattr(ctypes.CDLL(library), function)(0)


@cache
def processor_name() -> str:
    """Return the processor, named by what it can do: ``AMD EPYC (avx2, L3 8 MiB)``."""
    info = size = ""
    with suppress(OSError):
        info = Path("/proc/cpuinfo").read_text("utf-8")
        size = Path("/sys/devices/system/cpu/cpu0/cache/index3/size").read_text("utf-8")
    entries = dict(re.findall(r"^([^:\n]*\S)\s*: *(.*)$", info, re.MULTILINE))
    brand, _, _ = entries.get("model name", platform.machine()).partition("@")
    brand = " ".join(brand.split())
    flags = (entries.get("flags") or entries.get("Features", "")).split()
    fastest = (next((name for name in group if name in flags), None) for group in ABILITIES)
    abilities = [OURS.get(name, name) for name in fastest if name]
    if kib := re.match(r"(\d+)K", size):
        mib = int(kib[1]) / 1024
        abilities.append(f"L3 {mib:g} MiB")
    if not abilities:
        return brand
    return f"{brand} ({', '.join(abilities)})"


def cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def choose_threads() -> None:
    """Have torch use no more threads than there are free cores, unless OMP_NUM_THREADS is set.

    A thread whose core is busy makes a step take many times as long.
    """
    import torch  # heavy, and not for processes that only measure

    if "OMP_NUM_THREADS" in os.environ:
        return
    with suppress(OSError, AttributeError, ValueError, IndexError):  # another system
        before = _busy_seconds()
        time.sleep(0.2)
        busy = (_busy_seconds() - before) / 0.2
        free = max(1, cores() - round(busy))
        if free < torch.get_num_threads():
            torch.set_num_threads(free)
            logger.warning("other programs compute here; threads: %d (see OMP_NUM_THREADS)", free)


def _busy_seconds() -> float:
    """Return how long the processors have computed that this process may use, but for ``nice``."""
    content = Path("/proc/stat").read_text("utf-8")
    lines = map(str.split, content.splitlines())
    names = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    # User, system, interrupts of two kinds, and other guests' time.
    busy = (int(line[index]) for line in lines if line[0] in names for index in (1, 3, 6, 7, 8))
    return sum(busy) / os.sysconf("SC_CLK_TCK")


def python_program(code: str, *arguments: object) -> list[str]:
    """Return the command that runs Python code, which imports this very package and nothing from
    the current folder."""
    safe = f"import sys; sys.path[:] = [{PARENT!r}, *filter(None, sys.path)]\n{code}"
    return [sys.executable, "-c", safe, *map(str, arguments)]


def cache_folder() -> Path:
    """Return the folder of what was measured once; it need not exist, and cannot for a user
    without a home."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if caches.startswith("~"):
        caches = os.devnull
    return Path(caches) / "specdec"
