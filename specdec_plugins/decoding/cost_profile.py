"""What drafting and verifying cost on this machine: measured once, kept on disk."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable
from itertools import chain, pairwise
from pathlib import Path
from statistics import median

import msgspec
import torch
from tqdm import tqdm

from specdec_plugins.decoding.controllers.base import Controller, Decoder, Needs
from specdec_plugins.decoding.controllers.constant import Constant
from specdec_plugins.decoding.controllers.costs import Points, StepCosts
from specdec_plugins.decoding.statistics import DecodingStatistics, Stopwatch
from specdec_plugins.files.cache import keep, make_private, read_kept
from specdec_plugins.files.json_object import JsonObject
from specdec_plugins.files.lock import OutputLock
from specdec_plugins.files.paths import lock_path
from specdec_plugins.files.whole_file import whole_file
from specdec_plugins.host.fairseq_types import Sample
from specdec_plugins.machine import cache_folder, processor_name

logger = logging.getLogger(__name__)

METHOD = 11
"""The version of the way to measure; another one's figures mean something else."""


class _File(msgspec.Struct):
    """What a file of costs holds."""

    key: JsonObject
    costs: dict[str, Points]
    """The costs by batch size."""


class CostProfile:
    """Step costs, from a file where they were measured for the same machine, models and settings.

    A file holds batch sizes that are powers of two; it grows by those that are first met. They are
    measured on the batch that is at hand: it is decoded with some fixed numbers of slots at every
    step, the second time of two, and the seconds of drafting, and of all else but the encoders, are
    divided by the steps that its rows took. So they hold what comes between and around the steps,
    prefixes of all lengths, and that the last rows of a batch go on alone.
    """

    WARM_UP, LEAST, MOST, SECONDS = 1, 3, 15, 0.5
    """Rounds that do not count; the least and the most that do, as many as so many seconds hold."""

    def __init__(self, path: str | None = None) -> None:
        """``path`` is a file of the user's; None is one in the cache folder, named by its key.

        Raises:
            ValueError: it is a device, a FIFO or a folder.
        """
        if path is not None and os.path.exists(path) and not os.path.isfile(path):
            raise ValueError(f"--cost-profile {path}: is no ordinary file; name one, or a new one")
        self._given = path

    def costs(self, decoder: Decoder, sample: Sample, needs: Needs) -> StepCosts:
        """Costs of such drafts, for 1 row to as many as the ``sample`` has.

        Raises:
            ValueError: the user's file is something else, or cannot be written.
        """
        key = describe(decoder, needs)
        path = Path(self._given) if self._given else default_path(key)
        measured = self._load(path, key)
        rows, device = len(sample["net_input"]["src_tokens"]), _device(decoder)
        sizes = [2**i for i in range((rows - 1).bit_length() + 1)]
        missing = [size for size in sizes if str(size) not in measured]
        if missing:
            logger.info("measuring what steps cost, for batches of %s", missing)
            bar = tqdm(missing, desc="measuring steps", leave=False, delay=2, disable=None)
            # What is drawn in passing is not to change what is drawn later.
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                for size in bar:
                    measured[str(size)] = self._measure(decoder, sample, size, needs)
            self._keep(path, key, measured)
        wanted = {size: measured[str(size)] for size in sizes}
        return StepCosts.between(wanted, rows, needs.most, _padded(decoder))

    def _measure(self, decoder: Decoder, sample: Sample, rows: int, needs: Needs) -> Points:
        """Medians of steps of batches of ``rows`` rows, some of them the same ones."""
        index = torch.arange(rows) % len(sample["net_input"]["src_tokens"])
        inputs = {name: tensor[index] for name, tensor in sample["net_input"].items()}
        lengths = {0, 1, (needs.most + 1) // 2, needs.most}
        padded = _padded(decoder)
        if padded is not None:
            lengths |= {min(padded(length), needs.most) for length in range(needs.most)}
        found: dict[int, list[tuple[float, float]]] = {length: [] for length in sorted(lengths)}
        end = 0.0
        for number in range(-self.WARM_UP, self.MOST):
            if number == 0:
                end = time.perf_counter() + self.SECONDS
            if number >= self.LEAST and time.perf_counter() > end:
                break
            for length in found:
                # Twice: the first time, the processor's caches hold what other lengths took.
                for _ in range(2):
                    seconds = _step_seconds(decoder, {"net_input": inputs}, length, needs, rows)
                if number >= 0:
                    found[length].append(seconds)
        medians = {n: [median(part) for part in zip(*seconds)] for n, seconds in found.items()}
        return {
            part: [[n, seconds[place]] for n, seconds in medians.items()]
            for place, part in enumerate(("draft", "verify"))
        }

    def _load(self, path: Path, key: dict[str, object], again: bool = False) -> dict[str, Points]:
        """What the file holds for this key; nothing if it is of another, of which a warning tells
        unless it is looked at ``again``."""
        level = logging.DEBUG if again else logging.WARNING
        try:
            content = path.read_bytes() if self._given else read_kept(path)
            found = msgspec.json.decode(content, type=_File)
            for points in found.costs.values():
                _check_points(points)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError, RecursionError) as error:
            if self._given:
                raise ValueError(
                    f"--cost-profile {path}: is no cost profile ({error}); name another file"
                ) from error
            logger.log(level, "%s: cannot be used (%s); measuring anew", path, error)
            return {}
        differing = [name for name in key if found.key.get(name) != key[name]]
        if differing:
            what = " and ".join(differing)
            logger.log(level, "%s: was measured for another %s; measuring anew", path, what)
            return {}
        return found.costs

    def _keep(self, path: Path, key: dict[str, object], costs: dict[str, Points]) -> None:
        """Write the file, beside other sizes that another process has measured meanwhile."""
        try:
            if self._given:
                path.parent.mkdir(parents=True, exist_ok=True)
            else:
                make_private(path.parent)
            with OutputLock(path, lock_path(path), wait=True):
                write_costs(path, key, {**self._load(path, key, again=True), **costs})
        except OSError as error:
            if self._given:
                raise ValueError(
                    f"--cost-profile {path}: cannot be written ({error.strerror}); name another "
                    "file"
                ) from error
            logger.warning("%s: cannot be written (%s); not kept", path, error.strerror)


def write_costs(path: Path, key: dict[str, object], costs: dict[str, Points]) -> None:
    """Replace the file as a whole, so that nobody reads half of it; in the cache folder it is this
    user's alone.

    Raises:
        OSError: it cannot be written.
    """
    content = json.dumps({"key": key, "costs": costs}, indent=1).encode()
    if path.is_relative_to(cache_folder()):
        keep(path, content)
    else:
        with whole_file(path) as file:
            file.write(content)


def _padded(decoder: Decoder) -> Callable[[int], int] | None:
    """How many slots are verified in place of so many, where engines pad them."""
    sizes = decoder.engines.verifier.sizes
    if sizes.exact:
        return None
    # Before the slots goes the last committed token.
    return lambda slots: sizes.slots(slots + 1) - 1


def _step_seconds(
    decoder: Decoder, sample: Sample, length: int, needs: Needs, rows: int
) -> tuple[float, float]:
    """Seconds of drafting, and of all else but the encoders, of a step of all rows in which each
    drafts so many slots."""
    # All by one clock, as some are taken from others.
    statistics = DecodingStatistics(stopwatch=Stopwatch(waits=True))
    decoder.decode(sample, trial(length, needs), statistics)
    seconds = statistics.stopwatch.seconds()
    draft = seconds.get("draft", 0.0)
    steps = statistics.steps / rows
    return draft / steps, (statistics.total_seconds - seconds["encode"] - draft) / steps


def trial(length: int, needs: Needs) -> Controller:
    """What has every row draft so many slots at every step."""
    return Constant(length, Needs(length, confidences=needs.confidences))


def describe(decoder: Decoder, needs: Needs) -> dict[str, object]:
    """What costs depend on, apart from the batch size."""
    device, drafter_engine = _device(decoder), decoder.engines.drafter
    runs_on = torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()
    # A draft vocabulary is a buffer.
    shapes = [
        [
            (name, list(tensor.shape))
            for name, tensor in chain(model.named_parameters(), model.named_buffers())
        ]
        for model in decoder.models
    ]
    return {
        "method": METHOD,
        "device": runs_on,
        "processor": processor_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "dtype": str(_weight(decoder).dtype),
        "engine": decoder.engines.verifier.name,
        "precision": decoder.engines.verifier.precision,
        "drafter's engine": [drafter_engine.precision, drafter_engine.about],
        **decoder.engines.verifier.about,
        "models": hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:16],
        "longest draft": needs.most,
        "sampling": str(decoder.rule) if decoder.rule.draws else None,
        "repetition penalty": decoder.limits.repetition_penalty != 1,
    }


def default_path(key: dict[str, object]) -> Path:
    """The file of a key in the user's cache folder."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return cache_folder() / f"costs-{digest}.json"


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


def _device(decoder: Decoder) -> torch.device:
    return _weight(decoder).device


def _weight(decoder: Decoder) -> torch.Tensor:
    """One of the verifier, whose steps are measured."""
    return next(decoder.models[0].parameters())
