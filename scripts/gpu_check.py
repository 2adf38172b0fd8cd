#!/usr/bin/env python3
"""What a GPU is asked to do by fairseq and by each engine here, and how long one takes for it.

    scripts/gpu_check.py count      # on an emulated GPU: launches, waits and copies a token
    scripts/gpu_check.py check      # on yours: every system's output beside that of the CPU
    scripts/gpu_check.py profile    # launches, copies and waits a token, as torch's profiler says
    scripts/gpu_check.py eager      # milliseconds a token of fairseq beam 1 and of --engine eager
    scripts/gpu_check.py graphs     # the same of --engine cuda-graphs

--json FILE keeps the figures. With --device cpu all can be tried without a GPU; recorded steps are
then called. A batch is so many times the same line, so that all its rows end together.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from specdec_plugins.decoding.arrays import wait_for  # noqa: E402
from specdec_plugins.decoding.build import build_generator  # noqa: E402
from specdec_plugins.decoding.controllers import ControllerOptions  # noqa: E402
from specdec_plugins.decoding.statistics import DecodingStatistics  # noqa: E402
from specdec_plugins.engines.cuda_graphs import CudaGraphsEngine  # noqa: E402
from specdec_plugins.engines.eager import EagerEngine  # noqa: E402
from specdec_plugins.engines.engine import Engines  # noqa: E402
from specdec_plugins.files.input import Line  # noqa: E402
from specdec_plugins.inference import Settings, load_translator  # noqa: E402

FAIRSEQ = "fairseq beam 1"
OURS = {
    "AR": ControllerOptions("none"),
    "constant": ControllerOptions("constant"),
    "tree of 16": ControllerOptions("tree", tree_nodes=16),
}
ENGINES = {"eager": EagerEngine, "graphs": CudaGraphsEngine}
Record = dict[str, Any]


class Models:
    """A pair, its verifier once more for stock fairseq, and sources ``(1, n)`` on the device."""

    def __init__(self, args: Namespace, precision: str, device: str) -> None:
        given: dict[str, Any] = {"engine": "eager", "precision": precision, "device": device}
        ours = Settings.of_model(Path(args.pair), controller=ControllerOptions("constant"), **given)
        translator = load_translator(ours)
        generator: Any = translator.generator
        self.pair, self.target = (generator.model, generator.drafter), translator.codec.target
        stock = Settings.of_model(Path(args.pair), strategy="fairseq", beam=1, **given)
        self.stock: Any = load_translator(stock).generator
        lines = Path(args.source).read_text("utf-8").splitlines()[: args.lines]
        encoded = (translator.codec.encode(Line(n, line)) for n, line in enumerate(lines, 1))
        self.sources = [ids[None].to(device) for ids in encoded if ids is not None]

    def system(self, name: str, engine: EagerEngine) -> Any:
        """A generator."""
        if name == FAIRSEQ:
            return self.stock
        engines = Engines.both(engine)
        return build_generator(*self.pair, self.target, options=OURS[name], engines=engines)


def decode(generator: Any, sources: list[torch.Tensor], rows: int) -> list[list[int]]:
    """The tokens put out for each source, ``rows`` times in a batch; counted anew."""
    generator.statistics, outputs = DecodingStatistics(), []
    for source in sources:
        tokens = source.expand(rows, -1).contiguous()
        lengths = torch.full((rows,), tokens.size(1), device=tokens.device)
        net_input = {"src_tokens": tokens, "src_lengths": lengths}
        sample = {"id": lengths, "net_input": net_input}
        outputs.append(generator.generate([], sample)[0][0]["tokens"].tolist())
    return outputs


def engine_of(kind: str, precision: str, device: str) -> EagerEngine:
    if kind == "graphs" and not device.startswith("cuda"):
        return CudaGraphsEngine(precision, record=lambda part: part)
    return ENGINES[kind](precision)


def runs(args: Namespace, device: str) -> Any:
    """Every system at every batch size and precision: generator, models, and what it is."""
    kinds = [args.part] if args.part in ENGINES else list(ENGINES)
    for precision in args.precision:
        models = Models(args, precision, device)
        for rows in args.batch:
            names = [(FAIRSEQ, "eager"), *((name, kind) for kind in kinds for name in OURS)]
            for name, kind in names:
                engine = engine_of(kind, precision, device)
                what = {"system": name, "engine": "fairseq" if name == FAIRSEQ else engine.name}
                what.update(precision=precision, batch=rows)
                yield models.system(name, engine), models, what


def count(args: Namespace) -> list[Record]:
    """Per committed token, after a first round, in which is made what is made once."""
    from emulated import IS_HERE, LACKING, emulated, on_gpu, to_gpu

    if not IS_HERE:
        sys.exit(f"gpu_check.py: {LACKING}")
    found = []
    with emulated() as emulation:
        models = Models(args, "float32", "cpu")
        on_gpu(*models.pair, *models.stock.generator.model.models)
        sources = to_gpu(models.sources)
        for rows in args.batch:
            for name, kind in [(FAIRSEQ, "eager"), *((n, k) for n in OURS for k in ENGINES)]:
                engine = engine_of(kind, "float32", "cpu")
                generator = models.system(name, engine)
                decode(generator, sources, rows)
                emulation.clear()
                decode(generator, sources, rows)
                statistics, counts = generator.statistics, emulation.counts
                each = {key: counts[key] / statistics.committed_tokens for key in COUNTED}
                length = statistics.committed_tokens / statistics.steps
                label = "fairseq" if name == FAIRSEQ else engine.name
                about = {"system": name, "engine": label, "batch": rows, "tokens a step": length}
                found.append({**about, **each})
    return found


COUNTED = ("launches", "waits", "copies to host", "copies to device", "copies in passing")


def check(args: Namespace) -> list[Record]:
    """Whether outputs are those of stock fairseq on the CPU in float32."""
    plain = Models(args, "float32", "cpu")
    expected = decode(plain.stock, plain.sources, 1)
    found = []
    for generator, models, what in runs(args, args.device):
        outputs = decode(generator, models.sources, what["batch"])
        same = sum(one == other for one, other in zip(outputs, expected, strict=True))
        found.append({**what, "lines alike": same, "lines": len(expected)})
    return found


def timed(args: Namespace) -> list[Record]:
    """Medians over rounds, after one that does not count."""
    found = []
    for generator, models, what in runs(args, args.device):
        seconds = []
        for _ in range(args.rounds + 1):
            wait_for(torch.device(args.device))
            begin = time.perf_counter()
            decode(generator, models.sources, what["batch"])
            wait_for(torch.device(args.device))
            seconds.append(time.perf_counter() - begin)
        tokens = generator.statistics.committed_tokens
        found.append({**what, "ms a token": 1000 * median(seconds[1:]) / tokens})
    return found


def profile(args: Namespace) -> list[Record]:
    """Calls of CUDA's by the host, a committed token."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    activities = [ProfilerActivity.CPU]
    if args.device.startswith("cuda"):
        activities.append(ProfilerActivity.CUDA)
    found = []
    for generator, models, what in runs(args, args.device):
        decode(generator, models.sources, what["batch"])
        with profiler(activities=activities) as seen:
            decode(generator, models.sources, what["batch"])
        tokens, calls = generator.statistics.committed_tokens, Counter[str]()
        for event in seen.key_averages():
            if event.key.startswith(("cuda", "Memcpy")):
                calls[event.key] += event.count
        found.append({**what, **{name: number / tokens for name, number in calls.items()}})
    return found


PARTS: dict[str, Callable[[Namespace], list[Record]]] = {
    "count": count, "check": check, "profile": profile, "eager": timed, "graphs": timed
}  # fmt: skip


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--device", default="cuda", help="cuda")
    parser.add_argument("--pair", default=str(ROOT / "checkpoints" / "wmt.en-de"), help="a folder")
    parser.add_argument("--source", default=str(ROOT / "data" / "example.en"), help="text")
    parser.add_argument("--lines", type=int, default=5, help="of it (5)")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32], help="sizes (1 32)")
    parser.add_argument("--precision", nargs="+", default=["float32"], help="(float32)")
    parser.add_argument("--rounds", type=int, default=3, help="that are timed (3)")
    args = parser.parse_args(given)
    logging.disable(logging.INFO)
    found = PARTS[args.part](args)
    for record in found:
        figures = (f"{x:.3g}" if isinstance(x, float) else str(x) for x in record.values())
        print("  ".join(f"{key} {figure}" for key, figure in zip(record, figures)))
    if args.json:
        here = torch.cuda.get_device_name() if args.part != "count" and (
            args.device.startswith("cuda")) else "cpu"  # fmt: skip
        key = "counted" if args.part == "count" else "measured"
        about = {"device": here, "torch": torch.__version__, "lines": args.lines}
        args.json.write_text(json.dumps({**about, key: found}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
