"""Shards through a pool of workers, each with its own models: a Ray Data job.

Ray starts the workers, hands out the shards, starts a worker that died anew and gives its shards
to another. The shards' input and output must be in a file system that all workers see.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import ray
import ray.data
import torch

from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.output import JsonObject
from specdec_plugins.inference.loading import load_translator
from specdec_plugins.inference.settings import Settings
from specdec_plugins.jobs.corpus import Shard, translate_shard
from specdec_plugins.machine import PARENT

logger = logging.getLogger(__name__)

STORE_BYTES = 200 * 2**20
"""Size of the object store, which holds descriptions of shards only."""
MAX_TASKS = 2000
"""A worker that dies loses the rows of its task's block; but very many tasks slow Ray down."""
RETRIES = 3
"""Ray itself would try for ever, also a shard that kills every worker."""
SHOWN = re.compile(
    r"^\S*\b(?:Inference|Checkpoint|Engine|Value|OS|Permission|File\w+)Error: (.+)$", re.MULTILINE
)
"""Errors of a worker that a user can mend, in the traceback's text."""


class ShardTranslator:
    """A worker: models that are loaded once, and shards one by one."""

    def __init__(self, settings: Settings, seed: int, threads: int) -> None:
        torch.set_num_threads(threads)
        self.seed = seed
        self.translator = load_translator(settings)

    def __call__(self, row: JsonObject) -> dict[str, int]:
        """Translate the shard that a row describes, unless that was done before."""
        shard = Shard(**row)
        if not shard.done:
            translate_shard(self.translator, shard, self.seed)
        return {"lines": shard.lines}


def translate_shards(
    shards: Sequence[Shard], settings: Settings, seed: int, workers: int, threads: int
) -> Iterator[int]:
    """Translate shards in any order; yield the lines of each as it is done.

    A worker has ``threads`` CPUs, and a GPU if that is the settings' device.
    """
    gpus = int(torch.device(settings.device).type == "cuda")
    if started := not ray.is_initialized():
        _start()
    try:
        available = ray.cluster_resources()
        for name, count in (("CPU", workers * threads), ("GPU", workers * gpus)):
            if count > available.get(name, 0):
                raise InferenceError(
                    f"--workers {workers}: need {count} {name}s, and Ray has "
                    f"{available.get(name, 0):g}; give fewer workers or threads"
                )
        tasks = min(len(shards), MAX_TASKS)
        rows = ray.data.from_items([asdict(shard) for shard in shards], override_num_blocks=tasks)
        done = rows.map(
            ShardTranslator,
            fn_constructor_args=(settings, seed, threads),
            compute=ray.data.ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=2),
            num_cpus=threads,
            num_gpus=gpus,
            max_task_retries=RETRIES,
        )
        for row in done.iter_rows():
            yield int(row["lines"])
    except ray.exceptions.RayError as error:
        logger.debug("Ray gave up:", exc_info=True)
        raised = SHOWN.findall(str(error))
        fault = "a worker failed, or a shard killed several; see above, or give a smaller --batch"
        raise InferenceError(raised[-1] if raised else fault) from error
    finally:
        if started:
            ray.shutdown()


def _start() -> None:
    """Connect to the cluster of ``RAY_ADDRESS``, or start one of this machine alone."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray makes workers nicer than their driver by 15; here they are the work itself.
    os.environ.setdefault("RAY_worker_niceness", "0")
    path = os.pathsep.join(filter(None, [PARENT, os.environ.get("PYTHONPATH")]))
    # Else Ray looks for a cluster in a file that an earlier ``ray start`` may have left.
    local = {"address": "local", "include_dashboard": False, "object_store_memory": STORE_BYTES}
    ray.init(
        # Warnings tell of Ray's own settings; what stops a job is raised.
        logging_level=logging.ERROR,
        runtime_env={"env_vars": {"PYTHONPATH": path}},
        **({} if os.environ.get("RAY_ADDRESS") else local),
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
