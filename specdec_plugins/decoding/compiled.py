"""Compiling what is too small for tensors. No fairseq in here."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from filelock import FileLock

logger = logging.getLogger(__name__)

# At DEBUG they tell all that is compiled, line by line, and all that is locked.
for _name in ("numba", "filelock"):
    logging.getLogger(_name).setLevel(logging.WARNING)


Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Return a function of numbers and arrays, compiled at its first call and then kept on disk:
    beside its module or in the user's cache folder, or where numba's ``NUMBA_CACHE_DIR`` says."""
    try:
        made: Any = numba.njit(cache=True, nogil=True)(function)
        _save_one_by_one(made)
    except RuntimeError:
        # None of these can be written to: each process compiles for itself.
        made = numba.njit(nogil=True)(function)
    return cast(Function, made)


def _save_one_by_one(made: Any) -> None:
    """Let one process at a time keep what it compiled.

    Numba reads the list of what is kept of a function, adds to it and writes it back. Of two
    processes that do so at once, one may later be given the other's code for arguments of other
    types, and crash.
    """
    cache = made._cache
    save = cache.save_overload

    def save_alone(*overload: object) -> None:
        try:
            os.makedirs(cache.cache_path, exist_ok=True)
            with FileLock(os.path.join(cache.cache_path, "specdec.lock")):
                save(*overload)
        except OSError as error:  # a full disk, a folder that may no longer be written to
            logger.warning("%s: cannot be written (%s); not kept", cache.cache_path, error.strerror)

    cache.save_overload = save_alone
