#!/usr/bin/env python3
"""Train a verifier and its drafter within a quarter of an hour on one GPU.

    scripts/train_on_gpu.py PACKED OUT --verifier-seconds 340 --drafter-seconds 150

PACKED is made by scripts/gpu_parcel.py. From its weights this trains the verifier by the clock, on
all pairs and towards the end on the best; decodes its greedy output for the best sources; trains
the drafter on that output; and measures both on a validation text. OUT gets results.jsonl, a line
a figure, and both models in parts, once a minute: a run that is cut off leaves what it had.
--device cpu --small tries all of it without a GPU.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpu_parcel
import installed
import numpy as np
import torch
from fairseq.modules import FairseqDropout
from gpu_training import (
    Batch,
    Drawn,
    Text,
    Trained,
    count_pairs,
    drafter_sample,
    verifier_loss,
    with_joined_pairs,
)
from gpu_validation import FEW, ValidationText, distil, validate
from torch import Tensor

from specdec_plugins.criterions.glat_loss import GlatLoss, GlatLossConfig
from specdec_plugins.decoding.build import build_generator
from specdec_plugins.decoding.controllers.simple import Constant, NoDrafts
from specdec_plugins.engines.cuda_graphs import CudaGraphsEngine
from specdec_plugins.engines.engine import Engines
from specdec_plugins.files.command import Parser, command
from specdec_plugins.inference import load_translator
from specdec_plugins.models import training_pass

UNLIKELIHOOD = 0.3
SLOT_DECAY = 4.0
SHARE_OF_ALL = 0.6
"""Part of the verifier's time in which it reads all pairs, not only the best."""


class Bench:
    """The device, the pair, its text, and the folder of results."""

    def __init__(self, args: argparse.Namespace, pair: Path) -> None:
        self.args = args
        self.device = torch.device(args.device)
        self._on_gpu = self.device.type == "cuda"
        self._begin = time.monotonic()
        self.valid = ValidationText.read(args.valid, args.symbols)
        gpu_parcel.unpack(args.packed, pair)
        args.out.mkdir(parents=True, exist_ok=True)
        self._file = (args.out / "results.jsonl").open("a", encoding="utf-8")
        self.draw = np.random.default_rng(args.seed)
        torch.manual_seed(args.seed)
        translator = load_translator(pair, engine="eager", precision="float32", device="cpu")
        generator: Any = translator.generator
        self.codec = translator.codec
        self.words = translator.codec.target
        self.verifier = generator.model
        self.drafter = generator.drafter
        self.drafter.to(self.device)  # and its verifier
        texts = [gpu_parcel.read_numbers(args.packed, name) for name in gpu_parcel.TEXTS]
        #: Pairs of --text, and of both texts; joined ones follow.
        self.first, self.both = np.cumsum([count_pairs(text) for text in texts]).tolist()
        self.text = Text(with_joined_pairs(np.concatenate(texts), self.draw), self.device)
        self.note("text", pairs=self.both, joined=len(self.text.sizes) - self.both)

    def note(self, part: str, **values: Any) -> None:
        """Write a result at once, and show it."""
        line = {"part": part, "second": round(time.monotonic() - self._begin, 1), **values}
        for file in (self._file, sys.stdout):
            print(json.dumps(line), file=file, flush=True)

    def ticks(self, name: str, seconds: float, trained: Trained, seen: Tensor) -> Iterator[float]:
        """Yield, before each update, the part of the stage's time that is gone.

        ``seen``: figures of the last update, to be shown.
        """
        begin = said = stored = time.monotonic()
        updates = 0
        while (done := (time.monotonic() - begin) / max(seconds, 1e-6)) < 1:
            trained.set_rate(done)
            yield done
            updates += 1
            if updates % 10:
                continue
            figures = seen.tolist()  # waits for the device, which lags behind what was launched
            now = time.monotonic()
            if now - said > 10 or updates == 10:
                said = now
                self.note(name, updates=updates, done=round(done, 3), figures=figures)
            if now - stored > 60:
                stored = now
                gpu_parcel.store(self.args.out, name, trained.averaged)
        self.note(name, updates=updates, done=1.0, figures=seen.tolist())
        gpu_parcel.store(self.args.out, name, trained.averaged)

    def engine(self, precision: str) -> CudaGraphsEngine:
        """Return an engine that records; on a CPU it runs what it should record."""
        if self._on_gpu and not self.args.eager:
            return CudaGraphsEngine(precision)
        return CudaGraphsEngine(precision, record=lambda part: part)

    def generator(self, drafts: bool = False) -> Any:
        """Return a generator of the present models in float16 (on a CPU in float32)."""
        precision = "float16" if self._on_gpu else "float32"
        dtype = getattr(torch, precision)
        verifier = deepcopy(self.verifier).to(dtype).eval()
        drafter = deepcopy(self.drafter).to(dtype).eval()
        return build_generator(
            verifier,
            drafter,
            self.words,
            controller=Constant() if drafts else NoDrafts(),
            engines=Engines.both(self.engine(precision)),
        )


def train_verifier(bench: Bench, seconds: float, rate: float) -> None:
    """Train the verifier by the clock, each length of batches as a recorded update."""
    for module in bench.verifier.modules():
        if isinstance(module, FairseqDropout) and module.p > 0:
            module.p = bench.args.dropout
    bench.verifier.train().requires_grad_(True)
    trained = Trained(bench.verifier, rate, bench.device)
    is_word = [bool(re.fullmatch(r"[^\W\d_]+", word)) for word in bench.words.symbols]
    whole_words = torch.tensor(is_word, device=bench.device)
    seen = torch.zeros(2, device=bench.device)
    engine = bench.engine("bfloat16")

    @cache
    def recorded(_length: int) -> tuple[Batch, Callable[[], None]]:
        buffers = Batch(*(tensor.clone() for tensor in batch))

        def loss() -> Tensor:
            losses = verifier_loss(trained.model, buffers, whole_words)
            seen.copy_(torch.stack(losses).detach())
            return losses[0] + UNLIKELIHOOD * losses[1]

        return buffers, engine.record(lambda: trained.update(loss), bench.device)

    reads_all = True
    batches = verifier_batches(bench, bench.first)
    for done in bench.ticks("verifier", seconds, trained, seen):
        if reads_all and done >= SHARE_OF_ALL:
            reads_all = False
            batches = verifier_batches(bench, min(bench.first, bench.args.best))
        batch = next(batches).batch
        buffers, replay = recorded(batch.target.size(1))
        for buffer, tensor in zip(buffers, batch, strict=True):
            buffer.copy_(tensor)
        replay()
    bench.verifier.eval().requires_grad_(False)


def verifier_batches(bench: Bench, best: int) -> Iterator[Drawn]:
    """Yield batches without end, of so many of the best pairs and of all special ones.

    Lengths alone make a batch, so that its share of special pairs is the text's: with the shipped
    WMT pair's text 2.8 % of its rows at least, in the longest batches within joined pairs.
    """
    others = np.arange(bench.first, len(bench.text.sizes))
    chosen = np.concatenate([np.arange(best), others])
    return bench.text.batches(chosen, bench.args.tokens, bench.draw)


def train_drafter(bench: Bench, text: Text, seconds: float, rate: float) -> None:
    """Train the drafter on the verifier's output, by specdec-train's loss."""
    # As many logits at once as there are: a GPU holds them.
    training_pass.CHUNK = 2**31
    bench.drafter.train().requires_grad_(True)
    trained = Trained(bench.drafter, rate, bench.device)
    config = GlatLossConfig(verifier_labels=True, slot_decay=SLOT_DECAY)
    task: Any = SimpleNamespace(target_dictionary=bench.words)
    criterion = GlatLoss(task, config)
    drawn = text.batches(np.arange(len(text.sizes)), bench.args.drafter_tokens, bench.draw)
    seen = torch.zeros(1, device=bench.device)

    def loss() -> Tensor:
        total, size, _ = criterion(trained.model, drafter_sample(next(drawn)))
        mean = total / size
        seen.copy_(mean.detach())
        return mean

    for _ in bench.ticks("drafter", seconds, trained, seen):
        trained.update(loss)
    bench.drafter.eval()


@command()
def main(argv: Sequence[str]) -> None:
    """Train, distil, train, measure."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add("packed", type=Path)
    add("out", type=Path)
    add("--verifier-seconds", type=float, default=340)
    add("--drafter-seconds", type=float, default=150)
    add("--rehearsal", type=float, default=3, help="seconds of each stage's rehearsal")
    add("--rate", type=float, default=1.2e-3, help="the verifier's highest learning rate")
    add("--drafter-rate", type=float, default=2e-3)
    add("--tokens", type=int, default=32768, help="of a batch's targets, padding included")
    add("--drafter-tokens", type=int, default=49152)
    add("--dropout", type=float, default=0.15, help="of the verifier")
    add("--best", type=int, default=320_000, help="pairs of the last part of the time")
    add("--sources", type=int, default=320_000, help="sources to distil")
    add("--rows", type=int, default=1024, help="sentences that are distilled at once")
    add("--valid", type=Path, nargs=2, required=True, help="raw text and its translation")
    add("--symbols", type=Path, default=installed.ROOT / "data" / "symbols.tsv")
    add("--seed", type=int, default=1)
    add("--device", default="cuda")
    add("--eager", action="store_true", help="record no updates")
    add("--small", action="store_true", help="validate on as few lines as the rehearsal")
    args = parser.parse_args(argv)
    logging.disable(logging.INFO)
    torch.backends.cuda.enable_cudnn_sdp(False)  # it makes a plan for every shape
    with tempfile.TemporaryDirectory() as work:
        bench = Bench(args, Path(work) / "pair")
        # What fails is to fail in the first minute: a rehearsal, at a rate that changes nothing.
        train_verifier(bench, args.rehearsal, 0.0)
        train_drafter(bench, distil(bench, args.rows // 2), args.rehearsal, 0.0)
        validate(bench, FEW)
        train_verifier(bench, args.verifier_seconds, args.rate)
        train_drafter(bench, distil(bench, args.sources), args.drafter_seconds, args.drafter_rate)
        validate(bench, FEW if args.small else None)


if __name__ == "__main__":
    sys.exit(main())
