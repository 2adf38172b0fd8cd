"""What drafting and verifying cost on this machine: measured once, kept on disk."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import torch
from torch import Tensor
from tqdm import tqdm

from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.rehearsal import StepParts, decoded, rehearsal
from specdec_plugins.whole_file import whole_file

logger = logging.getLogger(__name__)

METHOD = 4
"""Of measuring; another one's figures mean something else."""

Points = dict[str, list[list[float]]]
"""``draft`` and ``verify``: pairs of slots and seconds, by slots, for one batch size."""


@dataclass(frozen=True)
class _File:
    """What a file of costs holds."""

    key: dict[str, Any]
    costs: dict[str, Points]
    """By batch size."""


@dataclass(frozen=True)
class StepCosts:
    """Seconds of the parts of a step, ``(rows + 1, slots + 1)``: by batch size and slots.

    Neither falls with the slots. The row of 0 rows is that of 1.
    """

    draft: Tensor
    """Drafting n slots, or n nodes of a tree; 0 for none."""
    verify: Tensor
    """Scoring and committing m slots and the bonus token: all else that a step does."""


class CostProfile:
    """Step costs, from a file where they were measured for the same machine, models and settings.

    A file holds batch sizes that are powers of two; it grows by those that are first met. The steps
    of a made-up batch are timed, with some numbers of slots. Then the batch that is at hand is
    decoded, without drafts and with whole blocks. By how much that took longer than if all that its
    rows did had been done in such steps, none of them finished before the others, those costs are
    raised. So they hold what comes between and around the steps, prefixes of all lengths, and that
    the last rows of a batch go on alone: with drafts, whose luck differs, longer than without.
    """

    PREFIX = 12
    """Target tokens committed before the step that is measured."""
    SOURCE = 24
    """Source tokens."""
    WARM_UP, LEAST, MOST, SECONDS = 2, 3, 15, 0.5
    """Rounds that do not count; the least and the most that do, as many as so many seconds hold."""
    REPEATS = 3
    """Steps of a kind in a row, in a round."""

    def __init__(self, path: str | None = None) -> None:
        """``path`` is a file of the user's; None is one in the cache folder, named by its key.

        Raises:
            ValueError: it is a device, a FIFO or a folder.
        """
        if path is not None and os.path.exists(path) and not os.path.isfile(path):
            raise ValueError(f"--cost-profile {path}: is no ordinary file; name one, or a new one")
        self._given = path

    def costs(self, generator: Any, sample: dict[str, Any], most: int) -> StepCosts:
        """Costs of steps with up to ``most`` slots of 1 row to as many as the ``sample`` has.

        Raises:
            ValueError: the user's file is something else, or cannot be written.
        """
        key = describe(generator, most)
        path = Path(self._given) if self._given else default_path(key)
        measured, device = self._load(path, key), _device(generator)
        rows = len(sample["net_input"]["src_tokens"])
        sizes = [2**i for i in range((rows - 1).bit_length() + 1)]
        missing = [size for size in sizes if str(size) not in measured]
        if missing:
            logger.info("measuring what steps cost, for batches of %s", missing)
            bar = tqdm(missing, desc="measuring steps", leave=False, delay=2, disable=None)
            # What is drawn in passing is not to change what is drawn later.
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                for size in bar:
                    measured[str(size)] = self._measure(generator, size, most)
                    self._adjust(generator, sample, size, most, measured[str(size)])
            self._save(path, key, measured)
        return tabulate({size: measured[str(size)] for size in sizes}, rows, most, device)

    def _measure(self, generator: Any, rows: int, most: int) -> Points:
        """Medians of the steps of a made-up batch."""
        model = generator.model
        seed = torch.Generator().manual_seed(0)
        width = min(self.SOURCE, int(model.max_positions()[0]))
        vocabulary = int(model.encoder.embed_tokens.num_embeddings)
        device = _device(generator)
        source = torch.randint(4, max(5, vocabulary), (rows, width), generator=seed)
        source[:, -1] = generator.eos
        times: dict[tuple[str, int], list[float]] = {}
        with rehearsal(generator, most, GenerationLimits()):
            parts = StepParts(generator, source.to(device), self.PREFIX)
            calls = [("draft", parts.draft), ("verify", parts.verify)]
            for number in self._rounds(self.WARM_UP):
                if number == 0:
                    times.clear()
                for slots in [0, *sorted({1, (most + 1) // 2, most})]:
                    # As in decoding: the first step of a kind after another kind is slower.
                    for name, part in calls * self.REPEATS:
                        times.setdefault((name, slots), []).append(_timed(part, slots, device))
        points: Points = {"draft": [], "verify": []}
        for (name, slots), seconds in times.items():
            points[name].append([slots, median(seconds)])
        points["draft"][0] = [0, 0.0]
        return points

    def _rounds(self, warm_up: int) -> Iterator[int]:
        """Numbers of rounds, from ``-warm_up``: for as long as there is time."""
        yield from range(-warm_up, 0)
        end = time.perf_counter() + self.SECONDS
        for number in range(self.MOST):
            if number >= self.LEAST and time.perf_counter() > end:
                break
            yield number

    def _adjust(
        self, generator: Any, sample: dict[str, Any], rows: int, most: int, points: Points
    ) -> None:
        """Adapt the steps of ``rows`` rows to how long it takes to decode so many."""
        index = torch.arange(rows) % len(sample["net_input"]["src_tokens"])
        inputs = {name: tensor[index] for name, tensor in sample["net_input"].items()}
        costs = tabulate({rows: points}, rows, most, torch.device("cpu"))
        ratios: dict[int, list[float]] = {0: [], most: []}
        for _ in self._rounds(0):
            for slots, found in ratios.items():
                seconds, steps = decoded(generator, {"net_input": inputs}, slots)
                step = float(costs.draft[rows, slots] + costs.verify[rows, slots])
                found.append(seconds / (step * sum(steps) / rows))
        plain, drafting = (median(found) for found in ratios.values())
        for part in points.values():
            for point in part:
                point[1] *= drafting if point[0] else plain

    def _load(self, path: Path, key: dict[str, Any]) -> dict[str, Points]:
        """What the file holds for this key; nothing, with a warning, if it is of another."""
        try:
            found = msgspec.json.decode(path.read_bytes(), type=_File)
            for points in found.costs.values():
                _check_points(points)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError, RecursionError) as error:
            if self._given:
                raise ValueError(
                    f"--cost-profile {path}: is no cost profile ({error}); name another file"
                ) from error
            logger.warning("%s: is no cost profile (%s); measuring anew", path, error)
            return {}
        differing = [name for name in key if found.key.get(name) != key[name]]
        if differing:
            logger.warning(
                "%s: was measured for another %s; measuring anew", path, " and ".join(differing)
            )
            return {}
        return found.costs

    def _save(self, path: Path, key: dict[str, Any], costs: dict[str, Points]) -> None:
        """Replace the file as a whole, so that nobody reads half of it."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(path) as file:
                file.write(json.dumps({"key": key, "costs": costs}, indent=1).encode())
        except OSError as error:
            if self._given:
                raise ValueError(
                    f"--cost-profile {path}: cannot be written ({error.strerror}); name another "
                    "file"
                ) from error
            logger.warning("%s: cannot be written (%s); not kept", path, error.strerror)


def describe(generator: Any, most: int) -> dict[str, Any]:
    """What costs depend on, apart from the batch size."""
    device = _device(generator)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()
    shapes = [
        [(parameter, list(tensor.shape)) for parameter, tensor in model.named_parameters()]
        for model in (generator.model, generator.drafter.model)
    ]
    return {
        "method": METHOD,
        "device": name,
        "processor": processor_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "dtype": str(next(generator.model.parameters()).dtype),
        "models": hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:16],
        "block size": most,
        "tree depth": generator.controller.depth,
        "sampling": str(generator.rule.sampling) if generator.rule.sampling else None,
    }


def default_path(key: dict[str, Any]) -> Path:
    """The file of a key in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return Path(cache) / "specdec" / f"costs-{digest}.json"


def tabulate(measured: dict[int, Points], rows: int, most: int, device: torch.device) -> StepCosts:
    """Interpolate linearly, between slots and between batch sizes."""
    tables = []
    for part in ("draft", "verify"):
        by_size = {
            size: [_interpolated(points[part], slot) for slot in range(most + 1)]
            for size, points in measured.items()
        }
        table = [
            [
                _interpolated([[size, row[slot]] for size, row in by_size.items()], max(1, count))
                for slot in range(most + 1)
            ]
            for count in range(rows + 1)
        ]
        # What is slower than the same with more slots was disturbed.
        costs = torch.tensor(table, device=device).flip(1).cummin(1).values
        tables.append(costs.flip(1))
    return StepCosts(*tables)


def _interpolated(points: list[list[float]], at: float) -> float:
    """The value at a place on a line through ``points``, constant beyond its ends."""
    right = bisect_left([place for place, _ in points], at)
    if right == 0 or right == len(points):
        return float(points[min(right, len(points) - 1)][1])
    (a, low), (b, high) = points[right - 1], points[right]
    return float(low + (high - low) * (at - a) / (b - a))


def _check_points(points: Points) -> None:
    """
    Raises:
        ValueError: these are no pairs of slots and seconds, by slots.
    """
    for part in ("draft", "verify"):
        pairs = points.get(part)
        if not pairs or any(len(pair) != 2 for pair in pairs):
            raise ValueError(f"no pairs for {part}")
        slots = [pair[0] for pair in pairs]
        if any(after <= before for before, after in pairwise(slots)):
            raise ValueError(f"the slots of {part} do not increase")
        if not all(0 <= number < 1e12 for pair in pairs for number in pair):
            raise ValueError(f"a number of {part} cannot be")


def _timed(part: Callable[[int], None], slots: int, device: torch.device) -> float:
    start = time.perf_counter()
    part(slots)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _device(generator: Any) -> torch.device:
    return next(iter(generator.model.parameters())).device


def processor_name() -> str:
    """The processor's name, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
