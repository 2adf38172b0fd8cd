#!/usr/bin/env python3
"""Check and time recorded steps on a GPU, in one process of about five minutes.

    scripts/gpu_check.py OUT                  # exact, steps, timing
    scripts/gpu_check.py OUT --parts big      # a Transformer-big of random weights
    scripts/gpu_check.py OUT --device cpu     # tried without a GPU: recorded steps are called

exact compares output with stock fairseq's (beam 1, float64), steps times a step by the device's
clock and lists its slowest kernels, timing decodes by all systems in turn (CTranslate2 too, if it
is installed) and counts idle rows. OUT gets results.jsonl, a line a figure, on disk at once.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import installed
import torch
from fairseq.data import Dictionary
from fairseq.data.data_utils import collate_tokens
from fairseq.models.transformer import TransformerModel, base_architecture
from fairseq.sequence_generator import SequenceGenerator
from torch.utils.benchmark import Timer

from specdec_plugins.decoding.acceptance import StrictRule
from specdec_plugins.decoding.build import build_generator
from specdec_plugins.decoding.controllers.simple import Constant, NoDrafts, Tree
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.resident.state import Kind, Shape
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.engines.cuda_graphs import CudaGraphsEngine
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.engine import Engine, Engines
from specdec_plugins.evaluation.texts import read_text
from specdec_plugins.files.command import Parser, command
from specdec_plugins.inference import Settings, load_translator
from specdec_plugins.inference.backends import Backend, BeamSearchGenerator, CTranslate2Generator
from specdec_plugins.models.block_causal import BlockCausalConfig, BlockCausalDrafter

ROOT = installed.ROOT
CONTROLLERS = {
    "AR": (NoDrafts(), Kind()),
    "chain": (Constant(), Kind(8)),
    "tree 16": (Tree(tree_nodes=16), Kind(8, 16)),
    "tree 32": (Tree(tree_nodes=32), Kind(8, 32)),
}
HISTOGRAM = [14, 11, 9, 8, 7, 6, 5, 4, 12]
"""Steps that accept 0, 1, … 8 drafted tokens, for models of random weights: 3.6 a step."""
ORDINARY = GenerationLimits()


class Bench:
    """A device, models in several precisions, and the file of results."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.device = torch.device(args.device)
        self.cuda = self.device.type == "cuda"
        args.out.mkdir(parents=True, exist_ok=True)
        self._file = (args.out / "results.jsonl").open("a", encoding="utf-8")
        settings = Settings.of_model(args.pair, engine="eager", precision="float32", device="cpu")
        translator = load_translator(settings)
        generator: Any = translator.generator
        self._models = (generator.model, generator.drafter)
        self.codec = translator.codec
        lines = read_text(str(args.source), args.lines)
        encoded = map(self.codec.encode, lines)
        self.sources = sorted((ids for ids in encoded if ids is not None), key=len)

    def note(self, part: str, **values: Any) -> None:
        """Write a result at once, and show it."""
        for file in (self._file, sys.stdout):
            print(json.dumps({"part": part, **values}), file=file, flush=True)

    def pair(self, precision: str, *models: Any) -> tuple[Any, Any, Any]:
        """Return the verifier, its drafter, and the verifier once more for fairseq."""
        verifier, drafter = models or self._models
        copies = [deepcopy(model).eval() for model in (verifier, drafter, verifier)]
        dtype = getattr(torch, precision)
        verifier, drafter, stock = (model.to(self.device, dtype) for model in copies)
        stock.prepare_for_inference_(SimpleNamespace(generation=SimpleNamespace(beam=1)))
        return verifier, drafter, stock

    def batches(self, sources: Sequence[torch.Tensor], rows: int) -> list[Any]:
        """Return samples of ``rows`` sentences, in order."""
        made = []
        pad = self.codec.source.pad()
        for some in (sources[start : start + rows] for start in range(0, len(sources), rows)):
            tokens = collate_tokens(some, pad, left_pad=True).to(self.device)
            lengths = torch.tensor([len(ids) for ids in some]).to(self.device)
            made.append({"net_input": {"src_tokens": tokens, "src_lengths": lengths}})
        return made

    def system(self, name: str, models: Any, words: Dictionary, precision: str, limits: Any) -> Any:
        """Return the generator of ``fairseq``, ``ctranslate2``, ``AR eager`` or ``tree 16``."""
        verifier, drafter, stock, *rule = models
        if name == "fairseq":
            lengths = {n: getattr(limits, n) for n in ("max_len_a", "max_len_b", "min_len")}
            search = SequenceGenerator([stock], words, beam_size=1, **lengths)
            return BeamSearchGenerator(search, Backend("eager", precision))
        if name == "ctranslate2":
            plain = deepcopy(verifier).to("cpu", torch.float32).requires_grad_(False)
            return CTranslate2Generator(plain, self.codec, limits, precision, self.device.type)
        kind = name.removesuffix(" eager")
        if kind != name:
            engine: Engine = EagerEngine(precision)
        elif self.cuda:
            engine = CudaGraphsEngine(precision)
        else:
            engine = CudaGraphsEngine(precision, record=lambda part: part)
        controller = deepcopy(CONTROLLERS[kind][0])
        scripted = rule[0] if rule and kind == "chain" else StrictRule()
        return build_generator(verifier, drafter, words, limits=limits, controller=controller,
                               engines=Engines.both(engine), rule=scripted)  # fmt: skip

    def seconds(self, call: Callable[[], object]) -> float:
        """Return the median seconds of a call in five rounds of twenty; on a CPU of one."""
        timer = Timer("call()", globals={"call": call})
        timer.timeit(2)
        calls = 20 if self.cuda else 1
        means = [timer.timeit(calls).mean for _ in range(5)]
        return median(means)


def decode(generator: Any, batches: Sequence[Any]) -> list[list[int]]:
    """Return the tokens of each sentence."""
    return [best[0]["tokens"].tolist() for b in batches for best in generator.generate([], b)]


def exact(bench: Bench) -> None:
    """Compare the output of every system with stock fairseq's greedy search in float64."""
    words = bench.codec.target
    stock = bench.system("fairseq", bench.pair("float64"), words, "float64", ORDINARY)
    expected = decode(stock, bench.batches(bench.sources, 1))
    for precision in bench.args.exact:
        models = bench.pair(precision)
        for rows, name in product(bench.args.batch, ("AR", "chain", "tree 32")):
            generator = bench.system(name, models, words, precision, ORDINARY)
            outputs = decode(generator, bench.batches(bench.sources, rows))
            differ = sum(a != b for a, b in zip(outputs, expected, strict=True))
            about = {"system": name, "precision": precision, "batch": rows, "differ": differ}
            bench.note("exact", **about, lines=len(outputs), engine=generator.engines.name)


@torch.no_grad()
def steps(bench: Bench) -> None:
    """Time a step and the copy of its outcome to the host, and list its slowest kernels."""
    kind = bench.device.type.upper()
    activities = [getattr(torch.profiler.ProfilerActivity, kind)]
    for precision in bench.args.precisions:
        models = bench.pair(precision)
        for rows, name in product(bench.args.batch, CONTROLLERS):
            system = bench.system(name, models, bench.codec.target, precision, ORDINARY)
            # It does the same whatever its rows hold.
            step = system._resident.recorded(CONTROLLERS[name][1], Shape(rows, 128, 64))
            device, read = (1e6 * bench.seconds(call) for call in (step.run, step.outcome.read))
            with torch.profiler.profile(activities=activities) as seen:
                step.run()
            kernels = [(e.key[:80], e.count, e.self_device_time_total) for e in seen.key_averages()]
            kernels.sort(key=lambda kernel: -kernel[2])
            count, busy = (sum(kernel[i] for kernel in kernels) for i in (1, 2))
            about = {"system": name, "precision": precision, "batch": rows, "kernels": count}
            about |= {"device_us": device, "read_us": read, "busy_us": busy}
            bench.note("steps", **about, slowest=kernels[:15])


def timing(bench: Bench) -> None:
    """Decode all lines by the systems in turn, round by round; the first round warms up."""
    peers = ["ctranslate2"] if find_spec("ctranslate2") else []
    names = ["fairseq", "AR eager", *CONTROLLERS, *peers]
    for precision in bench.args.precisions:
        models = bench.pair(precision)
        for rows in bench.args.batch:
            sources = bench.sources
            if rows > 1:
                repeats = 1 + 2 * rows // len(sources)
                sources = sorted(sources * repeats, key=len)[: 2 * rows]
            batches = bench.batches(sources, rows)
            about = {"part": "timing", "precision": precision, "batch": rows}
            take_turns(bench, models, names, batches, bench.codec.target, about)


def take_turns(
    bench: Bench, models: Any, names: Sequence[str], batches: Any, words: Dictionary, about: Any
) -> None:
    """Write the milliseconds a token of each system: median, lowest, highest."""
    scripted = len(models) > 3
    limits = GenerationLimits(max_len_a=0, max_len_b=39, min_len=39) if scripted else ORDINARY
    made = {n: bench.system(n, models, words, about["precision"], limits) for n in names}
    seconds: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(bench.args.rounds + 1):
        for name, generator in made.items():
            generator.statistics = DecodingStatistics()
            begin = time.perf_counter()
            decode(generator, batches)
            seconds[name].append(time.perf_counter() - begin)
    base = median(seconds["fairseq"][1:])
    for name, generator in made.items():
        counts = generator.statistics
        timed = seconds[name][1:]
        # A scripted rule commits a few tokens beyond the limit.
        tokens = 40 * counts.sentences if scripted else counts.committed_tokens
        low, middle, high = (1000 * f(timed) / tokens for f in (min, median, max))
        speed = {"ms_a_token": middle, "low": low, "high": high, "x_fairseq": base / median(timed)}
        speed["tokens_a_step"] = counts.acceptance_length
        if (resident := getattr(generator, "_resident", None)) and not scripted:
            # All rounds have the same steps.
            speed["idle"] = 1 - counts.steps * len(seconds[name]) / resident.row_steps
        bench.note(**about, system=name, **speed, tokens=tokens)


class Scripted(StrictRule):
    """Accepts as a table says, whatever was drafted: the speed of a pair that accepts so much."""

    def __init__(self, slots: int, device: torch.device) -> None:
        draw = torch.Generator().manual_seed(0)
        weights = torch.tensor(HISTOGRAM[: slots + 1])
        accepted = weights.float().multinomial(997, replacement=True, generator=draw)
        table = torch.arange(slots) < accepted[:, None]
        object.__setattr__(self, "table", table.to(device))
        object.__setattr__(self, "tick", torch.zeros(1, dtype=torch.long, device=device))

    def agrees(self, _verification: Any, _tokens: Any, drafted: Any, _after: Any) -> torch.Tensor:
        rows = torch.arange(len(drafted), device=drafted.device) * 61 + self.tick
        self.tick.add_(1)
        return self.table.index_select(0, rows % 997)[:, : drafted.size(1)]


def big(bench: Bench) -> None:
    """Time a Transformer-big of random weights, whose chains are accepted as a table says."""
    for precision in bench.args.precisions:
        models, words = random_pair(bench, precision)
        for rows in bench.args.batch:
            sources = list(torch.randint(4, len(words), (max(rows, 2), 30)))
            about = {"part": "big", "precision": precision, "batch": rows}
            batches = bench.batches(sources, rows)
            take_turns(bench, models, ("fairseq", "AR", "chain"), batches, words, about)


def random_pair(bench: Bench, precision: str) -> tuple[Any, Dictionary]:
    """Return a Transformer of random weights, a drafter for it, and its dictionary."""
    dim, layers, count = (64, 2, 300) if bench.args.small else (1024, 6, 42000)
    words = Dictionary()
    for number in range(count):
        words.add_symbol(f"w{number}")
    torch.manual_seed(0)
    shared = {"max_source_positions": 256, "max_target_positions": 256, "dropout": 0.0}
    widths = {"embed_dim": dim, "ffn_embed_dim": 4 * dim, "layers": layers}
    widths["attention_heads"] = dim // 64
    both = {f"{side}_{k}": n for side in ("encoder", "decoder") for k, n in widths.items()}
    options = argparse.Namespace(share_all_embeddings=True, **shared, **both)
    base_architecture(options)
    task: Any = SimpleNamespace(source_dictionary=words, target_dictionary=words)
    task.cfg = SimpleNamespace(block_size=8)
    task.verifier = verifier = TransformerModel.build_model(options, task).eval()
    reads = ("share_verifier_encoder", "verifier_features", "previous_token_head")
    both |= {"decoder_layers": 2, "decoder_ffn_embed_dim": 2 * dim, "verifier_embed_dim": dim}
    config = BlockCausalConfig(
        block_size=8, verifier_feature_layers="1,2", **both, **dict.fromkeys(reads, True), **shared
    )
    drafter = BlockCausalDrafter.build_model(config, task).eval()
    drafter.decoder.draft_vocabulary = torch.arange(4, min(8004, len(words)))
    drafter.attach_verifier(verifier)
    return (*bench.pair(precision, verifier, drafter), Scripted(8, bench.device)), words


PARTS = {part.__name__: part for part in (exact, steps, timing, big)}


@command()
def main(argv: Sequence[str]) -> int:
    """Run the parts; the exit status is 1 if one failed."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add("out", metavar="OUT", type=Path, help="folder of the results")
    add("--parts", nargs="+", choices=PARTS, default=["exact", "steps", "timing"])
    add("--device", default="cuda")
    add("--pair", type=Path, default=ROOT / "checkpoints" / "wmt.en-de")
    add("--source", type=Path, default=ROOT / "data" / "example.en", help="raw text")
    add("--lines", type=int, default=24)
    add("--batch", type=int, nargs="+", default=[1, 8, 32])
    add("--precisions", nargs="+", default=["float16", "float32"])
    add("--exact", nargs="+", default=["float64", "float32", "float16"], help="precisions of exact")
    add("--rounds", type=int, default=5)
    add("--small", action="store_true", help="for big: tiny models")
    args = parser.parse_args(argv)
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: there is no GPU; --device cpu tries all parts without one")
    logging.disable(logging.INFO)
    bench = Bench(args)
    failed = 0
    if bench.cuda:
        torch.backends.cuda.enable_cudnn_sdp(False)  # it makes a plan for every shape
        properties = torch.cuda.get_device_properties(bench.device)
        bench.note("machine", gpu=properties.name, torch=torch.__version__, cuda=torch.version.cuda)
    for name in args.parts:
        try:
            PARTS[name](bench)
        except Exception as error:
            failed = 1
            fault = f"{type(error).__name__}: {error}"
            bench.note(name, failed=fault[:400])
    return failed


if __name__ == "__main__":
    sys.exit(main())
