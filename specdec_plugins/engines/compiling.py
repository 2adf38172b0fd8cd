"""Compiled loops over small arrays, which numba keeps on disk."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, cast

import numba
from filelock import FileLock

logger = logging.getLogger(__name__)
# At DEBUG they log all that is compiled, line by line, and all that is locked.
for _name in ("numba", "filelock"):
    logging.getLogger(_name).setLevel(logging.WARNING)

#: False where ``NUMBA_DISABLE_JIT`` is set, for a debugger.
COMPILES = not numba.config.DISABLE_JIT  # type: ignore[attr-defined]
Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function, **options: Any) -> Function:
    """Compile a function of numbers and arrays at its first call, and store it in numba's cache.

    ``options``: more of ``numba.njit``.
    """
    try:
        kernel: Any = numba.njit(cache=True, nogil=True, **options)(function)
    except RuntimeError:
        # No folder can be written to: each process compiles for itself.
        return cast(Function, numba.njit(nogil=True, **options)(function))
    if not COMPILES:
        return function
    cache = kernel._cache
    load = cache.load_overload
    save = cache.save_overload

    def load_or_compile(*overload: object) -> object:
        try:
            return load(*overload)
        except Exception as error:  # whatever a damaged pickle raises
            logger.info("%s: cannot be read (%s); compiling anew", cache.cache_path, error)
            with suppress(OSError):
                cache.flush()
            return None

    def save_alone(*overload: object) -> None:
        # numba reads its index, adds to it and writes it back. If two processes do so at once, one
        # may later load the other's code for arguments of other types, and crash.
        try:
            os.makedirs(cache.cache_path, exist_ok=True)
            with FileLock(os.path.join(cache.cache_path, "specdec.lock")):
                save(*overload)
        except Exception as error:  # also of an index that another process is damaging
            logger.warning("%s: cannot be written (%s); not kept", cache.cache_path, error)

    cache.load_overload = load_or_compile
    cache.save_overload = save_alone
    return cast(Function, kernel)
