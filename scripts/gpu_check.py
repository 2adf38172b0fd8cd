#!/usr/bin/env python3
"""Count what fairseq and each engine here ask a GPU to do, and measure how long yours takes.

    scripts/gpu_check.py count      # on an emulated GPU: launches, waits and copies a token
    scripts/gpu_check.py check      # on yours: every system's output beside that of the CPU
    scripts/gpu_check.py profile    # launches, copies and waits a token, as torch's profiler says
    scripts/gpu_check.py eager      # milliseconds a token of fairseq beam 1 and of --engine eager
    scripts/gpu_check.py graphs     # the same of --engine cuda-graphs
    scripts/gpu_check.py base       # the same beside CTranslate2; of a Transformer-base, too

--json FILE keeps the figures. With --device cpu all can be tried without a GPU; recorded steps are
then called. For a Transformer-base of random weights look at the milliseconds a step: its drafts
mean nothing.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from fairseq.data import Dictionary
from fairseq.data.data_utils import collate_tokens
from fairseq.models.transformer import TransformerModel, base_architecture
from fairseq.sequence_generator import SequenceGenerator

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from specdec_plugins.decoding.arrays import wait_for  # noqa: E402
from specdec_plugins.decoding.build import build_generator  # noqa: E402
from specdec_plugins.decoding.controllers.simple import Constant, NoDrafts, Tree  # noqa: E402
from specdec_plugins.decoding.limits import GenerationLimits  # noqa: E402
from specdec_plugins.decoding.statistics import DecodingStatistics  # noqa: E402
from specdec_plugins.engines.cuda_graphs import CudaGraphsEngine  # noqa: E402
from specdec_plugins.engines.eager import EagerEngine  # noqa: E402
from specdec_plugins.engines.engine import Engines  # noqa: E402
from specdec_plugins.files.lines import Line  # noqa: E402
from specdec_plugins.inference import Settings, ctranslate2_model, load_translator  # noqa: E402
from specdec_plugins.inference.beam_search import BeamSearchGenerator  # noqa: E402
from specdec_plugins.inference.ctranslate2_ar import CTranslate2Generator  # noqa: E402
from specdec_plugins.models.block_causal import BlockCausalConfig, BlockCausalDrafter  # noqa: E402

FAIRSEQ = "fairseq beam 1"
OURS = {
    "AR": NoDrafts(),
    "constant": Constant(),
    "tree of 16": Tree(tree_nodes=16),
}
ENGINES = {"eager": EagerEngine, "graphs": CudaGraphsEngine}
Record = dict[str, Any]


class Models:
    """A pair, its verifier once more for stock fairseq, and sources, the shortest first."""

    name = "the pair"
    limits = GenerationLimits()

    def __init__(self, args: Namespace, precision: str, device: str) -> None:
        self.precision, self.device = precision, device
        given: dict[str, Any] = {"engine": "eager", "precision": precision, "device": device}
        ours = Settings.of_model(Path(args.pair), controller=Constant(), **given)
        translator = load_translator(ours)
        generator: Any = translator.generator
        self.pair = generator.model, generator.drafter
        self.source, self.target = translator.codec.source, translator.codec.target
        stock = Settings.of_model(Path(args.pair), strategy="fairseq", beam=1, **given)
        self.stock: Any = load_translator(stock).generator
        lines = Path(args.source).read_text("utf-8").splitlines()[: args.lines]
        encoded = (translator.codec.encode(Line(n, line)) for n, line in enumerate(lines, 1))
        self.sources = sorted((ids for ids in encoded if ids is not None), key=len)

    def system(self, name: str, engine: EagerEngine) -> Any:
        """A generator."""
        if name == FAIRSEQ:
            return self.stock
        return build_generator(
            *self.pair,
            self.target,
            limits=self.limits,
            controller=OURS[name],
            engines=Engines.both(engine),
        )

    def by_ctranslate2(self) -> Any:
        """A generator."""
        # It converts what is on the CPU in float32.
        verifier = deepcopy(self.pair[0]).to("cpu", torch.float32).requires_grad_(False)
        words = self.source, self.target
        device = torch.device(self.device).type
        return CTranslate2Generator(verifier, words, self.limits, self.precision, device)

    def batches(self, rows: int) -> list[Record]:
        """Of so many different lines each, or of those that there are."""
        parts = (self.sources[i : i + rows] for i in range(0, len(self.sources), rows))
        return [self._batch(part) for part in parts]

    def _batch(self, sources: list[torch.Tensor]) -> Record:
        tokens = collate_tokens(sources, self.source.pad(), left_pad=True).to(self.device)
        lengths = torch.tensor([len(ids) for ids in sources], device=self.device)
        return {"id": lengths, "net_input": {"src_tokens": tokens, "src_lengths": lengths}}


class RandomModels(Models):
    """A Transformer of random weights, as large as Transformer-base, and a drafter for it, which
    put out a fixed number of tokens."""

    name = "a Transformer-base of random weights"

    def __init__(self, args: Namespace, precision: str, device: str) -> None:
        self.precision, self.device = precision, device
        self.source = self.target = words = Dictionary()
        for number in range(32000):
            words.add_symbol(f"w{number}")
        torch.manual_seed(0)
        task = Namespace(
            source_dictionary=words, target_dictionary=words, cfg=Namespace(block_size=8)
        )
        positions = {"max_source_positions": 256, "max_target_positions": 256}
        options = Namespace(share_all_embeddings=True, **positions)
        base_architecture(options)
        task.verifier = verifier = TransformerModel.build_model(options, task)
        reads = ("share_verifier_encoder", "verifier_features", "previous_token_head")
        config = BlockCausalConfig(
            block_size=8, verifier_feature_layers="1,2", **dict.fromkeys(reads, True), **positions
        )
        drafter = BlockCausalDrafter.build_model(config, task)
        drafter.attach_verifier(verifier)
        dtype = getattr(torch, precision)
        self.pair = tuple(model.eval().to(device, dtype) for model in (verifier, drafter))
        stock = deepcopy(self.pair[0])
        stock.prepare_for_inference_(Namespace(generation=Namespace(beam=1)))
        limits = {"max_len_a": 0, "max_len_b": args.tokens - 1, "min_len": args.tokens - 1}
        self.limits = GenerationLimits(**limits)
        self.stock = BeamSearchGenerator(SequenceGenerator([stock], words, beam_size=1, **limits))
        self.sources = list(torch.randint(4, len(words), (max(args.batch), 24)))

    def by_ctranslate2(self) -> Any:
        # Nobody needs random weights again: they are not kept.
        with TemporaryDirectory() as folder, patch.dict(os.environ, XDG_CACHE_HOME=folder):
            return super().by_ctranslate2()


def decode(generator: Any, batches: list[Record]) -> list[list[int]]:
    """The tokens put out for each source; counted anew."""
    generator.statistics, outputs = DecodingStatistics(), []
    for batch in batches:
        outputs += [best[0]["tokens"].tolist() for best in generator.generate([], batch)]
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
            yield from systems(models, kinds, rows)


def systems(models: Models, kinds: list[str], rows: int) -> Any:
    """fairseq's search, and every system by these engines: generator, models, and what it is."""
    for name, kind in [(FAIRSEQ, "eager"), *((name, kind) for kind in kinds for name in OURS)]:
        engine = engine_of(kind, models.precision, models.device)
        what = {"system": name, "engine": "fairseq" if name == FAIRSEQ else engine.name}
        what.update(precision=models.precision, batch=rows)
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
        for rows in args.batch:
            batches = to_gpu(models.batches(rows))
            for generator, _, what in systems(models, list(ENGINES), rows):
                decode(generator, batches)
                emulation.clear()
                decode(generator, batches)
                tokens, counts = generator.statistics.committed_tokens, emulation.counts
                each = {key: counts[key] / tokens for key in COUNTED}
                found.append({**what, "tokens a step": tokens / generator.statistics.steps, **each})
    return found


COUNTED = ("launches", "waits", "copies to host", "copies to device", "copies in passing")


def check(args: Namespace) -> list[Record]:
    """Whether outputs are those of stock fairseq on the CPU in float32."""
    plain = Models(args, "float32", "cpu")
    expected = decode(plain.stock, plain.batches(1))
    found = []
    for generator, models, what in runs(args, args.device):
        outputs = decode(generator, models.batches(what["batch"]))
        same = sum(one == other for one, other in zip(outputs, expected, strict=True))
        found.append({**what, "lines alike": same, "lines": len(expected)})
    return found


def timed(args: Namespace) -> list[Record]:
    """What each takes, by the pair's real drafts."""
    return [{**what, **takes(generator, models, what["batch"], args.rounds)}
            for generator, models, what in runs(args, args.device)]  # fmt: skip


def takes(generator: Any, models: Models, rows: int, rounds: int) -> Record:
    """Medians over rounds, after one that does not count."""
    batches, seconds = models.batches(rows), []
    for _ in range(rounds + 1):
        wait_for(torch.device(models.device))
        begin = time.perf_counter()
        decode(generator, batches)
        wait_for(torch.device(models.device))
        seconds.append(time.perf_counter() - begin)
    statistics, each = generator.statistics, 1000 * median(seconds[1:])
    return {
        "ms a token": each / statistics.committed_tokens,
        "ms a step of a row": each / statistics.steps,
    }


def base(args: Namespace) -> list[Record]:
    """What is there without this package, beside cuda-graphs."""
    found = []
    for precision in args.precision:
        for kind in (Models, RandomModels):
            models = kind(args, precision, args.device)
            for rows in args.batch:
                made = [*systems(models, ["graphs"], rows), *ctranslate2_systems(models, rows)]
                for generator, _, what in made:
                    figures = takes(generator, models, rows, args.rounds)
                    found.append({"models": kind.name, **what, **figures})
    return found


def ctranslate2_systems(models: Models, rows: int) -> Any:
    """The same of CTranslate2, if there is one that can; else a line says why not."""
    kind, precision = torch.device(models.device).type, models.precision
    if not ctranslate2_model.is_installed():
        reason = "is not installed (pip install ctranslate2)"
    elif kind == "cuda" and not import_module("ctranslate2").get_cuda_device_count():
        reason = "has no CUDA here (ctranslate2.get_cuda_device_count() is 0)"
    elif precision not in import_module("ctranslate2").get_supported_compute_types(kind):
        reason = f"has no {precision} on this device"
    else:
        what = {"system": "AR", "engine": "ctranslate2", "precision": precision, "batch": rows}
        yield models.by_ctranslate2(), models, what
        return
    print(f"CTranslate2 {reason}: left out", file=sys.stderr)


def profile(args: Namespace) -> list[Record]:
    """Calls of CUDA's by the host, a committed token."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    activities = [ProfilerActivity.CPU]
    if args.device.startswith("cuda"):
        activities.append(ProfilerActivity.CUDA)
    found = []
    for generator, models, what in runs(args, args.device):
        batches = models.batches(what["batch"])
        decode(generator, batches)
        with profiler(activities=activities) as seen:
            decode(generator, batches)
        tokens, calls = generator.statistics.committed_tokens, Counter[str]()
        for event in seen.key_averages():
            if event.key.startswith(("cuda", "Memcpy")):
                calls[event.key] += event.count
        found.append({**what, **{name: number / tokens for name, number in calls.items()}})
    return found


PARTS: dict[str, Callable[[Namespace], list[Record]]] = {
    "count": count, "check": check, "profile": profile, "eager": timed, "graphs": timed,
    "base": base,
}  # fmt: skip


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--device", default="cuda", help="cuda")
    parser.add_argument("--pair", default=str(ROOT / "checkpoints" / "wmt.en-de"), help="a folder")
    parser.add_argument("--source", default=str(ROOT / "data" / "example.en"), help="text")
    parser.add_argument("--lines", type=int, default=32, help="of it (32)")
    parser.add_argument("--tokens", type=int, default=40, help="of random weights' output (40)")
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
        about["float32 products"] = torch.get_float32_matmul_precision()
        args.json.write_text(json.dumps({**about, key: found}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
