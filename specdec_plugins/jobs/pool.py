"""Shards through a pool of Ray's workers, each with its own models.

Ray starts the workers, hands out the shards, starts a worker that died anew and gives its shards
to another. The shards' input and output must be in a file system that all workers see.
"""

from __future__ import annotations

import logging
import os
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from unittest.mock import patch

import ray
import torch
from ray._private.node import Node
from ray.util import ActorPool

from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.output import JsonObject
from specdec_plugins.inference.loading import load_translator
from specdec_plugins.inference.settings import Settings
from specdec_plugins.jobs.corpus import Shard, check_models, translate_shard
from specdec_plugins.machine import PARENT

logger = logging.getLogger(__name__)

#: Size of the object store, which holds descriptions of shards only.
STORE_BYTES = 200 * 2**20
#: Further tries of a shard whose worker died.
RETRIES = 3
#: Errors of a worker that a user can mend, in the traceback's text.
SHOWN = re.compile(
    r"^\S*\b(?:Inference|Checkpoint|Engine|Value|OS|Permission|File\w+)Error: (.+)$", re.MULTILINE
)


class ShardTranslator:
    """A worker: models that are loaded once, and shards one by one."""

    def __init__(self, settings: Settings, seed: int, threads: int) -> None:
        torch.set_num_threads(threads)
        self.seed = seed
        self.translator = load_translator(settings)

    def translate(self, shard: Shard) -> int:
        """Translate a shard, unless that was done before; return its lines."""
        if not shard.done:
            check_models(shard, self.translator.settings)
            translate_shard(self.translator, shard, self.seed)
        return shard.lines


def translate_shards(
    shards: Sequence[Shard], settings: Settings, seed: int, workers: int, threads: int
) -> Iterator[int]:
    """Translate shards in any order; yield the lines of each as it is done.

    A worker has ``threads`` CPUs, and a GPU if that is the settings' device.
    """
    if not shards:
        return
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
        actor = ray.remote(ShardTranslator).options(
            num_cpus=threads, num_gpus=gpus, max_restarts=-1, max_task_retries=RETRIES
        )
        actors = range(min(workers, len(shards)))
        pool = ActorPool([actor.remote(settings, seed, threads) for _ in actors])
        yield from pool.map_unordered(lambda worker, shard: worker.translate.remote(shard), shards)
    except ray.exceptions.RayError as error:
        logger.debug("Ray gave up:", exc_info=True)
        if raised := SHOWN.findall(str(error)):
            raise InferenceError(raised[-1]) from error
        raise InferenceError(
            "a worker failed, or a shard killed several; see above, or give a smaller --batch"
        ) from error
    finally:
        if started:
            ray.shutdown()


def _start() -> None:
    """Connect to the cluster of ``RAY_ADDRESS``, or start one of this machine alone."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray makes workers nicer than their driver by 15; here they are the work itself.
    os.environ.setdefault("RAY_worker_niceness", "0")
    path = os.pathsep.join(filter(None, [PARENT, os.environ.get("PYTHONPATH")]))
    # Workers of a cluster inherit nothing from this process.
    variables = {"PYTHONPATH": path, "ORT_DISABLE_TELEMETRY": os.environ["ORT_DISABLE_TELEMETRY"]}
    local: JsonObject = {}
    if not os.environ.get("RAY_ADDRESS"):
        # Else Ray looks for a cluster in a file that an earlier ``ray start`` may have left.
        local = {"address": "local", "include_dashboard": False, "object_store_memory": STORE_BYTES}
    handler = signal.getsignal(signal.SIGTERM)
    with ExitStack() as stack:
        if os.environ["RAY_USAGE_STATS_ENABLED"] == "0":
            # Without a dashboard Ray starts its process nevertheless, only to ask the addresses of
            # three clouds whether it runs there, and to report usage.
            stack.enter_context(patch.object(Node, "start_api_server"))
        # Warnings tell of Ray's own settings; what stops a job is raised.
        ray.init(logging_level=logging.ERROR, runtime_env={"env_vars": variables}, **local)
    with suppress(ValueError):  # in a thread
        # Ray's own would end the job with status 15, and leave its message out.
        signal.signal(signal.SIGTERM, handler)
