"""The ways to decode a pair on this machine, as they were measured, and which of them to take."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Literal

import msgspec
import torch

from specdec_plugins.decoding.acceptance import StrictRule
from specdec_plugins.decoding.controllers.simple import Auto, NoDrafts, Tree
from specdec_plugins.engines.choice import engine_name
from specdec_plugins.files.output import JsonObject, as_read, differing, file_digest, write_json
from specdec_plugins.inference.ctranslate2_ar import obstacle
from specdec_plugins.inference.ctranslate2_model import is_installed
from specdec_plugins.inference.report import versions
from specdec_plugins.inference.settings import CTRANSLATE2, Settings
from specdec_plugins.machine import cache_folder, make_cache_folder, processor_name

logger = logging.getLogger(__name__)


class Way(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One way to decode: without drafts by a backend, or with trees of one size."""

    tree: int = 0
    """Nodes; 0 decodes without drafts."""
    drafter_precision: str | None = None
    """The precision of drafts; None is the verifier's."""
    ar_backend: Literal["ours", "ctranslate2"] = "ours"
    """What decodes without drafts."""

    def __str__(self) -> str:
        if self.tree:
            precision = self.drafter_precision
            return f"trees of {self.tree}" + (f", {precision} drafts" if precision else "")
        return "AR by CTranslate2" if self.ar_backend == CTRANSLATE2 else "AR by our loop"

    def applied(self, settings: Settings) -> Settings:
        """The settings of a run that decodes in this way."""
        if self.tree:
            controller = Tree(tree_nodes=self.tree)
            return replace(
                settings, controller=controller, drafter_precision=self.drafter_precision
            )
        if settings.strategy == "specdec":
            settings = replace(settings, controller=NoDrafts(), drafter_precision=None)
        return replace(settings, ar_backend=self.ar_backend)

    def suits(self, settings: Settings) -> bool:
        """Whether a run whose settings leave the way open may decode in this one."""
        if self.tree:
            own = settings.drafter_precision
            return settings.strategy == "specdec" and own in (None, self.drafter_precision)
        if settings.ar_backend not in ("auto", self.ar_backend):
            return False
        return self.ar_backend != CTRANSLATE2 or (is_installed() and obstacle(settings) is None)


class Timed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A way, and what a sentence took."""

    way: Way
    milliseconds: list[float]
    """A sentence, of each round; at least one."""

    @property
    def middle(self) -> float:
        """The median."""
        return median(self.milliseconds)


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was measured: a file that one can read."""

    key: JsonObject
    """All that it holds for, as :func:`describe` has it."""
    made: str
    """Date and time, UTC."""
    batches: dict[int, list[Timed]]
    """The ways by batch size, the fastest first."""

    def at(self, batch: int) -> list[Timed]:
        """The ways at the largest batch size that is not above this one, or else at the
        smallest."""
        below = [size for size in self.batches if size <= batch]
        return self.batches[max(below) if below else min(self.batches)]


def describe(settings: Settings, threads: int) -> JsonObject:
    """All that a table depends on, apart from the batch size.

    Raises:
        InferenceError: a model cannot be read.
    """
    models = {"verifier": settings.ar_path, "drafter": settings.path}
    engine = engine_name(settings.engine, settings.precision, settings.device)
    library = {CTRANSLATE2: version(CTRANSLATE2)} if is_installed() else {}
    prefix = settings.target_prefix
    return as_read(
        {
            "models": {name: path and file_digest(path) for name, path in models.items()},
            "processor": processor_name(),
            "threads": threads,
            "engine": engine,
            "precision": settings.precision,
            "rule": settings.rule.values,
            "block_size": settings.block_size,
            # Often a language, each of which is a text of its own kind.
            **({} if prefix is None else {"target_prefix": prefix}),
            "versions": {**versions(), **library},
        }
    )


def table_path(key: JsonObject) -> Path:
    """The file of a key in the cache folder; one for all versions."""
    named = {name: value for name, value in key.items() if name != "versions"}
    digest = hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()
    return _folder() / f"{digest[:16]}.json"


def _folder() -> Path:
    return cache_folder() / "ways"


def save_table(table: Table) -> Path:
    """Keep it, in place of an older one.

    Returns:
        its file.

    Raises:
        InferenceError: it cannot be written.
    """
    path = table_path(table.key)
    make_cache_folder()
    write_json(path, msgspec.to_builtins(table))
    return path


def load_table(key: JsonObject) -> Table | None:
    """Return the stored table; None if there is none, or, with a warning, if it cannot be used."""
    path = table_path(key)
    try:
        table = msgspec.json.decode(path.read_bytes(), type=Table)
        for timed in table.batches.values():
            if not timed or not all(one.milliseconds for one in timed):
                raise ValueError("a batch size without figures")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        logger.warning("%s: cannot be read (%s); run specdec-tune again", path, error)
        return None
    if other := differing(table.key, key):
        logger.warning("%s: was measured with other %s; run specdec-tune again", path, other)
        return None
    return table


def as_tuned(settings: Settings, threads: int | None = None) -> Settings:
    """The settings with the way that was measured to be the fastest, where they leave it open; the
    same ones where nothing was measured.

    Open is ``--controller auto`` without options of its own, and of ``--strategy AR`` the backend;
    with strict acceptance on a CPU: other output is not to depend on what took how long.

    Args:
        threads: that are to decode; None is torch's number.

    Raises:
        InferenceError: a model cannot be read.
    """
    auto = settings.strategy == "specdec" and settings.controller == Auto()
    greedy = settings.strategy == "AR" and settings.ar_backend == "auto"
    strict = settings.rule == StrictRule() and torch.device(settings.device).type == "cpu"
    models = [path for path in (settings.path, settings.ar_path) if path and os.path.isfile(path)]
    if not (strict and (auto or greedy) and len(models) == 2 and _folder().is_dir()):
        return settings
    table = load_table(describe(settings, threads or torch.get_num_threads()))
    timed = [] if table is None else table.at(settings.batch)
    way = next((one.way for one in timed if one.way.suits(settings)), None)
    if way is None:
        return settings
    logger.info("as specdec-tune measured: %s", way)
    return way.applied(settings)
