#!/usr/bin/env python3
"""Translate the examples (and anything typed or piped) with the shipped pair, and time it.

    scripts/demo.py [--model DIR] [--engine eager] [--precision int8] [--repeats N]
        [--source FILE --reference FILE]

English to German image captions, one sentence at a time: fairseq's beam search, our cached greedy
loop, and speculative decoding, strict and relaxed, all in the same run, alternating.
"""

from __future__ import annotations

import argparse
import os
import select
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import sacrebleu  # noqa: E402
import torch  # noqa: E402
from tqdm import tqdm  # noqa: E402

from specdec_plugins.checkpoints.archive import CheckpointError  # noqa: E402
from specdec_plugins.cli.terminal import prepare_terminal  # noqa: E402
from specdec_plugins.decoding.acceptance import RelaxedRule  # noqa: E402
from specdec_plugins.decoding.controllers import ControllerOptions  # noqa: E402
from specdec_plugins.decoding.controllers.registry import TREE_NODES  # noqa: E402
from specdec_plugins.decoding.engine_choice import ENGINE, PRECISION  # noqa: E402
from specdec_plugins.inference import (  # noqa: E402
    InferenceError,
    Settings,
    Translation,
    Translator,
    load_translator,
)

RELAXED = RelaxedRule(beta=3, tau=1.0)
TREES = ControllerOptions("tree")
STRICT = "specdec strict"
BASELINE = "fairseq beam 1"
GREEDY = "AR (ours)"
SYSTEMS: dict[str, dict[str, Any]] = {
    "fairseq beam 5": {"strategy": "fairseq", "beam": 5},
    BASELINE: {"strategy": "fairseq", "beam": 1},
    GREEDY: {"strategy": "AR"},
    STRICT: {"strategy": "specdec", "controller": TREES},
    "specdec relaxed": {"strategy": "specdec", "controller": TREES, "rule": RELAXED},
}


def main() -> int:
    prepare_terminal("demo.py")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=ROOT / "checkpoints" / "multi30k.en-de")
    add = parser.add_argument
    add(ENGINE.flag, choices=ENGINE.choices, default=ENGINE.default, help=ENGINE.help)
    choices = ("float32", "bfloat16", "int8")
    add(PRECISION.flag, choices=choices, default="bfloat16", help="default: bfloat16")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs; medians are shown")
    parser.add_argument("--source", type=Path, default=ROOT / "data" / "example.en")
    parser.add_argument("--reference", type=Path, default=ROOT / "data" / "example.de")
    parser.add_argument("--lines", type=int, help="only the first so many")
    parser.add_argument("--table-only", action="store_true", help="do not show the translations")
    args = parser.parse_args()
    try:
        for flag, value in (("--repeats", args.repeats), ("--lines", args.lines)):
            if value is not None and value < 1:
                raise ValueError(f"{flag} {value}: must be at least 1")
        systems = {name: load(args, given) for name, given in SYSTEMS.items()}
        sources, references = (
            path.read_text(encoding="utf-8").splitlines()[: args.lines]
            for path in (args.source, args.reference)
        )
    except (CheckpointError, InferenceError, OSError, ValueError) as error:
        print(f"demo.py: {error}", file=sys.stderr)
        return 1
    seconds, outputs = measure(systems, sources, args.repeats)
    if not args.table_only:
        for source, translation in zip(sources, outputs[STRICT]):
            show(source, translation)
    table(systems, seconds, outputs, references)
    if not args.table_only:
        talk(systems[STRICT])
    return 0


def load(args: argparse.Namespace, given: dict[str, Any]) -> Translator:
    precision = args.precision
    if given["strategy"] == "fairseq" and precision == "int8":
        precision = "float32"
    settings = Settings.of_model(args.model, engine=args.engine, precision=precision, **given)
    return load_translator(settings)


def measure(
    systems: dict[str, Translator], sources: list[str], repeats: int
) -> tuple[dict[str, list[float]], dict[str, list[Translation]]]:
    """Decoding seconds of every run (after a warm-up), and the outputs, of every system."""
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    outputs: dict[str, list[Translation]] = {}
    rounds = [(i, name) for i in range(repeats + 1) for name in systems]
    for i, name in tqdm(rounds, desc="measuring", leave=False, disable=not sys.stderr.isatty()):
        system = systems[name]
        before = system.statistics.total_seconds
        outputs[name] = list(system.translate(sources))
        if i > 0:
            seconds[name].append(system.statistics.total_seconds - before)
    return seconds, outputs


def show(source: str, translation: Translation) -> None:
    steps = " ".join(str(count) for count in translation.accepted)
    print(f"  {source}\n  {translation.text}")
    print(
        f"  {translation.tokens} tokens in {len(translation.accepted)} steps; accepted: {steps}\n"
    )


def table(
    systems: dict[str, Translator],
    seconds: dict[str, list[float]],
    outputs: dict[str, list[Translation]],
    references: list[str],
) -> None:
    greedy = [t.text for t in outputs[GREEDY]]
    baselines = BASELINE, GREEDY
    columns = "BLEU", "acceptance length", "ms/sentence", *(f"x {n}" for n in baselines), "as AR"
    print(f"| {'system':15} | {' | '.join(columns)} |")
    print("|---" * (1 + len(columns)) + "|")
    for name, system in systems.items():
        texts = [t.text for t in outputs[name]]
        bleu = sacrebleu.corpus_bleu(texts, [references]).score
        drafts = "specdec" in name
        length = f"{system.statistics.acceptance_length:.2f}" if drafts else "-"
        ratios = [
            statistics.median(base / own for base, own in zip(seconds[baseline], seconds[name]))
            for baseline in baselines
        ]
        same = sum(a == b for a, b in zip(texts, greedy))
        milliseconds = 1000 * statistics.median(seconds[name]) / len(references)
        print(
            f"| {name:15} | {bleu:4.1f} | {length:>17} | {milliseconds:11.1f} "
            f"| {ratios[0]:15.2f}x | {ratios[1]:10.2f}x | {same:2}/{len(texts)} |"
        )
    ours, stock = systems[STRICT], systems[BASELINE].settings.precision
    k, threads = ours.block_size, torch.get_num_threads()
    print(
        f"\ncpu, ours by engine {ours.engine} in {ours.settings.precision}, fairseq in {stock}, "
        f"{threads} threads, batch 1, k {k}, controller tree, "
        f"{TREES[TREE_NODES]} nodes; relaxed: {RELAXED}; {len(seconds[STRICT])} alternating runs, "
        "medians; decoding only.\n"
        "BLEU: sacreBLEU on these sentences. Acceptance length: tokens committed per step, "
        "bonus token included."
    )


def talk(translator: Translator) -> None:
    """Translate what is typed; of a pipe, what it holds by now and later, unless it is empty."""
    if sys.stdin is None or sys.stdin.closed:
        return
    if sys.stdin.isatty():
        print("\nType English sentences, an empty line to end.")
    elif not select.select([sys.stdin], [], [], 1.0)[0]:
        return
    for line in sys.stdin:
        if not line.strip():
            break
        start = time.perf_counter()
        for translation in translator.translate([line.strip()]):
            show(line.strip(), translation)
            print(f"  {1000 * (time.perf_counter() - start):.0f} ms\n", flush=True)


if __name__ == "__main__":
    try:
        status = main()
        sys.stdout.flush()
        sys.exit(status)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:  # of standard output; Python would try again when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if isinstance(error, BrokenPipeError):
            sys.exit(0)
        sys.exit(f"demo.py: standard output: cannot be written to ({error.strerror}); make room")
