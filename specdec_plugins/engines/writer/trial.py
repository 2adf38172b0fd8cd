"""A trial of the writer's instructions, in a process of its own. No fairseq in here.

An instruction that LLVM lacks for a processor ends the process in which it is compiled.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
from contextlib import suppress
from pathlib import Path

import numba
import numpy as np

from specdec_plugins.engines.compiling import COMPILES
from specdec_plugins.engines.writer import kernel
from specdec_plugins.machine import cache_folder, processor_name, python_program

logger = logging.getLogger(__name__)

PROGRAM = "from specdec_plugins.engines.writer.trial import try_products; try_products()"


def runs_here() -> bool:
    """Return whether the products can be compiled and are right; tried once on a machine."""
    source = Path(kernel.__file__).read_text("utf-8")
    facts = f"{source} {kernel.FEATURES} {numba.__version__} {processor_name()}"
    digest = hashlib.sha256(facts.encode()).hexdigest()
    passed = cache_folder() / f"writer-{digest[:16]}"
    if not COMPILES:
        return False
    if os.path.exists(passed):  # which no error ends, in a folder that may not be read
        return True
    logger.info("the writer is compiled for this processor, once; this takes some 15 s")
    trial = subprocess.run(python_program(PROGRAM), capture_output=True, text=True, check=False)
    if trial.returncode:
        logger.info("no writer: its trial ended with %d: %s", trial.returncode, trial.stderr)
        return False
    with suppress(OSError):  # then each process tries
        passed.parent.mkdir(parents=True, exist_ok=True)
        passed.touch()
    return True


def try_products() -> None:
    """Compare products of random numbers with numpy's."""
    assert kernel.FAMILY is not None
    numbers = np.random.default_rng(0)
    width = kernel.FAMILY.width
    weights = numbers.integers(-127, 128, (kernel.ROWS, 3, width))
    codes = numbers.integers(-127, 128, (3, 2, width))
    stored = ((weights + kernel.OFFSET) & 255).astype(np.uint8)
    ordered = kernel.in_order(stored.reshape(kernel.ROWS, -1))
    by_8, by_4 = kernel.multiplied(ordered.ravel(), codes.astype(np.int8).ravel())
    first = codes.reshape(2, 3, width)[0]
    expected = ((weights + kernel.OFFSET) * first).sum((1, 2))
    halves = np.stack([stored & 15, stored >> 4], 2).astype(np.int64)
    if list(by_8) != expected.tolist() or list(by_4) != (halves * codes).sum((1, 2, 3)).tolist():
        raise SystemExit("products are wrong")
