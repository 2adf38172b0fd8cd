"""The modes in which a pair can be decoded on this machine, as measured, and the choice of one."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
from pathlib import Path
from statistics import median
from typing import Annotated

import msgspec
import torch

from specdec_plugins.engines.choice import engine_name
from specdec_plugins.files.output import JsonObject, as_read, differing
from specdec_plugins.inference.backends import obstacle
from specdec_plugins.inference.drafts.base import DRAFTS
from specdec_plugins.inference.report import versions
from specdec_plugins.inference.settings import CTRANSLATE2, Settings
from specdec_plugins.inference.systems import AR, parse_system
from specdec_plugins.machine import cache_folder, processor_name
from specdec_plugins.verifiers.folder import model_digest

logger = logging.getLogger(__name__)

#: Nodes of the trees that specdec-tune tries.
TREES = (4, 6, 8, 12, 16)
#: The option of drafts in int8, after others.
INT8_DRAFTS = ",drafter_precision=int8"
COPY = f"constant@drafts=copy{INT8_DRAFTS}"
#: AR in int8 where the writer, which is the default in small batches, is slower.
STEP_BY_STEP = f"{AR}@engine=onnxruntime"


Milliseconds = Annotated[float, msgspec.Meta(gt=0)]
BatchSize = Annotated[int, msgspec.Meta(ge=1)]


class Timed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mode, and its milliseconds a sentence in each round."""

    #: The system, see :func:`parse_system`.
    mode: str
    milliseconds: Annotated[list[Milliseconds], msgspec.Meta(min_length=1)]

    @property
    def middle(self) -> float:
        """The median."""
        return median(self.milliseconds)


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The measurements of a pair: a readable file."""

    #: Everything that the table depends on: see :func:`describe`.
    key: JsonObject
    #: The modes by batch size, the fastest first.
    batches: Annotated[
        dict[BatchSize, Annotated[list[Timed], msgspec.Meta(min_length=1)]],
        msgspec.Meta(min_length=1),
    ]

    def at(self, batch: int) -> list[Timed]:
        """Return the modes at the largest measured batch size up to this one, else the smallest."""
        below = [size for size in self.batches if size <= batch]
        return self.batches[max(below, default=min(self.batches))]


def describe(settings: Settings, threads: int) -> JsonObject:
    """Return everything that a table depends on, apart from the batch size."""
    models = {"verifier": settings.ar_path, "drafter": settings.path}
    return as_read(
        {
            "models": {name: path and model_digest(path) for name, path in models.items()},
            "processor": processor_name(),
            "threads": threads,
            "engine": engine_name(settings.engine, settings.precision, settings.device),
            "writer": settings.engine == "auto",
            "precision": settings.precision,
            "rule": settings.rule.values,
            "block_size": settings.block_size,
            # Often a language, each of which is a text of its own kind.
            "target_prefix": settings.target_prefix,
            "versions": versions(),
        }
    )


def table_path(key: JsonObject) -> Path:
    """Return the file of a key in the cache folder, the same for all versions."""
    named = {name: value for name, value in key.items() if name != "versions"}
    digest = hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()
    return cache_folder() / "modes" / f"{digest[:16]}.json"


def by_ctranslate2(precision: str) -> str:
    """Return the mode of decoding by CTranslate2 in a precision."""
    return f"{CTRANSLATE2}@{precision}"


def trees(kind: str) -> list[str]:
    """Return the modes of trees; ``kind`` is :data:`INT8_DRAFTS` or empty."""
    return [f"tree@tree_nodes={nodes}{kind}" for nodes in TREES]


def load_table(key: JsonObject) -> Table | None:
    """Return the stored table; None if there is none, or, with a warning, if it cannot be used: if
    it is another user's, has another key, or other modes than those that specdec-tune tries."""
    path = table_path(key)
    ours = {
        AR,
        STEP_BY_STEP,
        by_ctranslate2(key["precision"]),
        COPY,
        *trees(""),
        *trees(INT8_DRAFTS),
    }
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise ValueError("it is no ordinary file of yours")
        table = msgspec.json.decode(path.read_bytes(), type=Table)
        stored = {timed.mode for modes in table.batches.values() for timed in modes}
        if unknown := sorted(stored - ours):
            raise ValueError(f"specdec-tune does not measure {unknown[0]!a}")
        if other := differing(table.key, key):
            raise ValueError(f"measured with other {other}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        logger.warning("%s: cannot be used (%s); run specdec-tune again", path, error)
        return None
    return table


def as_tuned(settings: Settings, threads: int | None = None) -> Settings:
    """Return the settings with the fastest measured mode, where they leave the mode open.

    They do so with ``--controller auto`` without options of its own, and with ``--strategy AR`` by
    ``--AR-backend auto``; with strict acceptance on a CPU, since other output must not depend on
    timings.

    Args:
        threads: that are to decode; None is torch's number.
    """
    if not settings.follows_tables or not os.path.isdir(cache_folder() / "modes"):
        return settings
    table = load_table(describe(settings, threads or torch.get_num_threads()))
    if table is None:
        return settings
    for timed in table.at(settings.batch):
        mode = parse_system(timed.mode, settings)
        if _suits(mode, settings):
            logger.info("as specdec-tune measured: %s", timed.mode)
            return mode
    return settings


def _suits(mode: Settings, settings: Settings) -> bool:
    """Return whether a run whose settings leave the mode open may have this one."""
    drafter = settings.path is not None and settings.drafter_named
    if settings.strategy == "specdec" and drafter and mode.kind != DRAFTS["drafter"]:
        return False
    if mode.kind is not None:
        return settings.strategy == "specdec" and settings.drafter_precision in (
            None,
            mode.drafter_precision,
        )
    if settings.ar_backend not in ("auto", mode.ar_backend):
        return False
    return not mode.by_ctranslate2 or obstacle(mode) is None
