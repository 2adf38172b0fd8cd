#!/usr/bin/env python3
"""Translate the examples (and anything typed or piped) with a shipped pair, and time it.

    scripts/demo.py --precision int8 --repeats 7
    scripts/demo.py --model checkpoints/multi30k.en-de
    echo "The train to Berlin leaves in ten minutes." | scripts/demo.py

English to German, one sentence at a time: fairseq's beam search, our cached greedy loop, and
speculative decoding, strict and relaxed, all in the same run, alternating. In a translation, what
one step accepted of its draft stands together, and the verifier's own tokens between.
"""

from __future__ import annotations

import argparse
import os
import select
import shutil
import statistics
import sys
import textwrap
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import sacrebleu  # noqa: E402
import torch  # noqa: E402
from tqdm import tqdm  # noqa: E402

from specdec_plugins.decoding.acceptance import RelaxedRule  # noqa: E402
from specdec_plugins.decoding.controllers import ControllerOptions  # noqa: E402
from specdec_plugins.decoding.engine_choice import ENGINE, PRECISION  # noqa: E402
from specdec_plugins.evaluation.texts import read_references, read_text  # noqa: E402
from specdec_plugins.files.errors import CheckpointError, InferenceError  # noqa: E402
from specdec_plugins.files.help import documented  # noqa: E402
from specdec_plugins.files.terminal import prepare_terminal  # noqa: E402
from specdec_plugins.files.wording import counted  # noqa: E402
from specdec_plugins.inference import (  # noqa: E402
    Settings,
    Translation,
    Translator,
    load_translator,
)
from specdec_plugins.inference.threads import choose_threads  # noqa: E402

WIDTH = min(80, shutil.get_terminal_size().columns)
fill = partial(textwrap.fill, width=WIDTH, break_long_words=False, break_on_hyphens=False)
END = "</s>"
BEGIN, FINISH = "\ue000", "\ue001"
"""Of what was drafted, while lines are filled: each as wide as a bracket, and in no text."""
COLOURED = sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
DRAFTED = ("\x1b[1;34m", "\x1b[0m") if COLOURED else ("[", "]")
FAINT = ("\x1b[2m", "\x1b[0m") if COLOURED else ("", "")
MARKS = (
    f"  {DRAFTED[0]}drafted and accepted in one step{DRAFTED[1]}, the verifier's own token after it"
)
NEXT = """
  Next, in the project's folder:
        translate a file        .venv/bin/specdec-translate --help
        see every step          .venv/bin/specdec-translate ... --trace FILE
        your own pair           .venv/bin/specdec-make-pair --help
"""
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
EXAMPLES = {"multi30k.en-de": "captions"}
"""In data/, of a pair that knows little else; for others it is "example"."""


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    found = argparse.ArgumentParser(**documented(__doc__))
    add, model = found.add_argument, ROOT / "checkpoints" / "wmt.en-de"
    add("--model", metavar="DIR", type=Path, default=model, help="the folder of a pair")
    add(ENGINE.flag, choices=ENGINE.choices, default=ENGINE.default, help=ENGINE.help)
    choices = ("float32", "bfloat16", "int8")
    add(
        PRECISION.flag,
        choices=choices,
        default="float32",
        help="of all; fairseq has float32 for int8",
    )
    add("--repeats", metavar="N", type=int, default=3, help="timed runs; medians are shown")
    add("--source", metavar="FILE", type=Path, help="sentences, by default the pair's examples")
    add("--reference", metavar="FILE", type=Path, help="their translations, for BLEU")
    add("--lines", metavar="N", type=int, help="only the first so many")
    add("--table-only", action="store_true", help="do not show the translations")
    return found


def main() -> int:
    prepare_terminal("demo.py")
    args = parser().parse_args()
    try:
        for flag, value in (("--repeats", args.repeats), ("--lines", args.lines)):
            if value is not None and value < 1:
                raise ValueError(f"{flag} {value}: must be at least 1")
        source, reference = texts(args)
        lines = read_text(source, args.lines, "--source")
        references = read_references(reference, args.lines, lines, source, "--source")
        sources = [line.text for line in lines]
        choose_threads()
        systems = {name: load(args, given) for name, given in SYSTEMS.items()}
    except (CheckpointError, InferenceError, OSError, ValueError) as error:
        print(f"demo.py: {error}", file=sys.stderr)
        return 1
    shown = None if args.table_only else load(args, {**SYSTEMS[STRICT], "trace": True})
    seconds, outputs = measure(systems, sources, args.repeats)
    if shown is not None:
        print(f"{MARKS}\n")
        for source, translation in zip(sources, shown.translate(sources)):
            show(source, translation)
    table(systems, seconds, outputs, references)
    if shown is not None:
        talk(shown)
        print(NEXT)
    return 0


def texts(args: argparse.Namespace) -> tuple[str, str]:
    """Sentences and their translations: those given, or the pair's examples.

    Raises:
        ValueError: only one of the two is given.
    """
    given = args.source, args.reference
    if None not in given:
        return str(args.source), str(args.reference)
    if given != (None, None):
        raise ValueError("--source, --reference: give both, or none for the examples")
    example = ROOT / "data" / EXAMPLES.get(args.model.resolve().name, "example")
    return str(example.with_suffix(".en")), str(example.with_suffix(".de"))


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
    steps, tokens = len(translation.accepted), translation.tokens
    print(fill(source, initial_indent="  ", subsequent_indent="  "))
    print(wrapped(pieces(translation)))
    print(f"  {FAINT[0]}{tokens} tokens in {steps} steps{FAINT[1]}\n")


def pieces(translation: Translation) -> Iterator[tuple[list[str], bool]]:
    """The translation's subwords by step: what was drafted and accepted, then the verifier's."""
    assert translation.trace is not None
    for step in translation.trace.steps:
        yield step.drafted[: step.accepted], True
        yield [step.bonus] if step.bonus is not None else [], False


def wrapped(parts: Iterator[tuple[list[str], bool]]) -> str:
    """Lines of words in which what was drafted is marked; subwords are joined."""
    text = ""
    for tokens, drafted in parts:
        words = "".join(f"{token} " for token in tokens if token != END).replace("@@ ", "")
        body = words.rstrip()
        text += f"{BEGIN}{body}{FINISH}{words[len(body) :]}" if drafted and body else words
    lines = fill(text.strip(), initial_indent="  ", subsequent_indent="  ")
    return lines.replace(BEGIN, DRAFTED[0]).replace(FINISH, DRAFTED[1])


def table(
    systems: dict[str, Translator],
    seconds: dict[str, list[float]],
    outputs: dict[str, list[Translation]],
    references: list[str],
) -> None:
    greedy = [t.text for t in outputs[GREEDY]]
    baselines = BASELINE, GREEDY
    columns = {"BLEU": 4, "accepts": 7, "ms": 6, **{f"x {n}": len(n) + 2 for n in baselines}}
    columns["as AR"] = 5
    print(f"  {'system':15}  {'  '.join(f'{c:>{w}}' for c, w in columns.items())}")
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
        milliseconds = 1000 * statistics.median(seconds[name]) / len(texts)
        print(
            f"  {name:15}  {bleu:4.1f}  {length:>7}  {milliseconds:6.1f}  {ratios[0]:16.2f}"
            f"  {ratios[1]:11.2f}  {f'{same}/{len(texts)}':>5}"
        )
    ours, stock = systems[STRICT], systems[BASELINE].arithmetic
    k, threads = ours.block_size, counted(torch.get_num_threads(), "thread")
    notes = (
        f"CPU, ours by engine {ours.engine} in {ours.arithmetic}, fairseq in {stock}, "
        f"{threads}, batch 1, k {k}, controller tree, {TREES['tree_nodes']} nodes; relaxed: "
        f"{RELAXED}; {len(seconds[STRICT])} alternating runs, medians; decoding only. BLEU: "
        "sacreBLEU on these sentences. accepts: acceptance length, tokens committed per step, "
        "bonus token included. ms: a sentence. as AR: sentences equal to our greedy loop's."
    )
    print(f"\n{fill(notes, initial_indent='  ', subsequent_indent='  ')}")


def talk(translator: Translator) -> None:
    """Translate what is typed; of a pipe, what it holds by now and later, unless it is empty."""
    if sys.stdin is None or sys.stdin.closed:
        return
    if sys.stdin.isatty():
        print("\n  Type English sentences, an empty line to end.\n")
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
