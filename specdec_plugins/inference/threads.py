"""How many threads a command decodes by."""

from __future__ import annotations

import logging
import os

import torch

from specdec_plugins.files.errors import counted
from specdec_plugins.machine import cores, free_cores

logger = logging.getLogger(__name__)


def choose_threads() -> None:
    """Have torch, and the engines made later, decode by as many threads as there are free cores.

    Threads that wait for one whose core is taken make a step take many times as long. Whoever sets
    ``OMP_NUM_THREADS`` has that number.
    """
    if "OMP_NUM_THREADS" in os.environ:
        return
    free = free_cores()
    if free < torch.get_num_threads():
        torch.set_num_threads(free)
        logger.warning(
            "others compute on %d of %s: by %s; OMP_NUM_THREADS=%d takes all",
            cores() - free,
            counted(cores(), "core"),
            counted(free, "thread"),
            cores(),
        )
