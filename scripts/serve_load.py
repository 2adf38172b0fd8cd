#!/usr/bin/env python3
"""Start specdec-serve, ask it as several clients would, and print the figures of docs/serve.md.

    scripts/serve_load.py checkpoints/wmt.en-de

They are ratios to a translator in this process. Sentences are --input-path's lines, repeated.
"""

from __future__ import annotations

import atexit
import json
import random
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any
from urllib.request import Request, urlopen

import installed
import torch

from specdec_plugins.evaluation.texts import read_text
from specdec_plugins.files.command import Parser, command, positive, put
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.inference import Settings, load_translator
from specdec_plugins.inference.tuned_modes import as_tuned

ROOT = installed.ROOT
PYTHON = (sys.executable, "-m")


class Service:
    def __init__(self, pair: Path, workers: int) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{port}"
        program = [*PYTHON, "specdec_plugins.cli.serve", str(pair), "--workers", str(workers)]
        flags = ["--port", port, "--max-characters", "10000000", "--timeout", "36000"]
        self.process = subprocess.Popen([*program, *flags], cwd=ROOT)
        atexit.register(self.process.terminate)
        languages: Any = None
        while not languages and self.process.poll() is None:
            time.sleep(0.2)
            with suppress(OSError):  # it loads
                languages = json.load(urlopen(f"{self.url}/languages"))
        if not languages:
            raise InferenceError("specdec-serve ended")
        source = next(language for language in languages if language["targets"])
        self.direction = {"source": source["code"], "target": source["targets"][0]}

    def ask(self, path: str, q: str | list[str]) -> Any:
        body = json.dumps({"q": q, **self.direction}).encode()
        return urlopen(Request(self.url + path, body, {"Content-Type": "application/json"}))

    def translate(self, q: str | list[str]) -> Any:
        return json.load(self.ask("/translate", q))["translatedText"]

    def mebibytes(self) -> tuple[int, ...]:
        """Return the memory of the largest worker, which is a child of a child."""
        processes = [str(self.process.pid)]
        for _ in range(2):
            lists = [
                file for one in processes for file in Path(f"/proc/{one}/task").glob("*/children")
            ]
            processes = [child for file in lists for child in file.read_text().split()]
        files = [Path(f"/proc/{process}/status") for process in processes]
        sizes = [re.findall(r"Vm(?:HWM|RSS):\s+(\d+)", file.read_text()) for file in files]
        return tuple(max(map(int, column)) // 1024 for column in zip(*sizes))


def seconds(work: Callable[..., object], *arguments: object) -> float:
    begin = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - begin


@command()
def main(argv: list[str]) -> None:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("pair", metavar="PAIR", type=Path)
    add("--input-path", metavar="FILE", type=Path, default=ROOT / "data" / "example.en")
    add("--workers", type=positive, default=2, help="of the service, a thread each (2)")
    add("--sentences", type=positive, default=30, help="that are timed one by one (30)")
    add("--clients", type=positive, default=8, help="at the same time (8)")
    add("--requests", type=positive, default=200, help="of 1 to 20 sentences (200)")
    add("--long", type=positive, default=400, help="sentences of the long request (400)")
    add("--lines", type=positive, default=500, help="compared with specdec-translate's (500)")
    args = parser.parse_args(argv)
    pair = args.pair.resolve()  # for other processes, which run elsewhere
    lines = [line.text for line in read_text(str(args.input_path), None) if line.text.strip()]
    torch.set_num_threads(1)
    translator = load_translator(as_tuned(Settings.of_model(pair, scores=False), 1))
    service = Service(pair, args.workers)

    def own(*texts: str) -> None:
        list(translator.translate(texts))

    texts = [*islice(cycle(lines), args.sentences)]
    service.translate(texts)  # to warm all workers
    own(*texts)
    extra = [seconds(service.translate, text) - seconds(own, text) for text in texts]
    put(f"a request beyond Translator.translate: {1000 * median(extra):.1f} ms\n")

    text = " ".join(islice(cycle(" ".join(lines).split()), 300))
    ratios = []
    for sentence in texts:
        begin = time.perf_counter()
        with service.ask("/translate/stream", text) as answer:
            first = time.perf_counter() - begin  # its head comes with the first words
            answer.read()
        ratios.append(first / seconds(service.translate, sentence))
    put(f"first words of 300, over a sentence alone: {median(ratios):.2f}\n")

    draw = random.Random(80)
    several = [draw.choices(lines, k=draw.randint(1, 20)) for _ in range(args.requests)]
    with ThreadPoolExecutor(args.clients) as pool:
        rate = sum(map(len, several)) / seconds(lambda: [*pool.map(service.translate, several)])
        ratio = rate * seconds(own, *texts) / len(texts)
        put(f"sentences a second of {args.clients} clients, over one process's: {ratio:.2f}\n")

        alone = [seconds(service.translate, text) for text in texts]
        long = pool.submit(service.translate, [*islice(cycle(lines), args.long)])
        beside = []
        while not long.done():
            beside.append(seconds(service.translate, texts[len(beside) % len(texts)]))
        long.result()  # raises what went wrong
        late, usual = (sorted(times)[len(times) * 9 // 10] for times in (beside, alone))
        put(f"a sentence beside {args.long}, slowest tenth, over alone: {late / usual:.2f}\n")
        put("memory of a worker, at most and now: {}, {} MiB\n".format(*service.mebibytes()))

        same = [*islice(cycle(lines), args.lines)]
        turns = draw.sample(range(args.lines), args.lines)
        outputs = dict(zip(turns, pool.map(service.translate, [same[turn] for turn in turns])))
    program = [*PYTHON, "specdec_plugins.cli.inference", str(pair), "--split-sentences", "--quiet"]
    given = "\n".join(same).encode()
    written = subprocess.check_output(program, input=given, cwd=ROOT).decode().split("\n")
    differ = sum(outputs[turn] != written[turn] for turn in turns)
    put(f"lines that specdec-translate writes otherwise: {differ} of {args.lines}\n")


if __name__ == "__main__":
    sys.exit(main())
