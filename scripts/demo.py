#!/usr/bin/env python3
"""Translate the examples (and anything typed or piped) with a shipped pair, and time it.

    scripts/demo.py --precision int8 --repeats 7
    scripts/demo.py --model checkpoints/multi30k.en-de
    echo "The train to Berlin leaves in ten minutes." | scripts/demo.py

English to German, one sentence at a time. First the translations: what one step accepted of its
draft stands together, and the verifier's own tokens between. Then a table: fairseq's beam search,
our greedy loop without drafts, and speculative decoding, each timed in its turn.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


@contextmanager
def doing(what: str, pause: float = 5) -> Iterator[None]:
    """Say on standard error what is done, and for how long: in a terminal every second, else after
    each ``pause`` of so many seconds."""
    print(f"  {what}", file=sys.stderr, flush=True)
    terminal, done = sys.stderr.isatty(), threading.Event()

    def tick() -> None:
        begin = time.monotonic()
        while not done.wait(1 if terminal else pause):
            text = f"    {time.monotonic() - begin:.0f} s"
            print(f"\r{text}" if terminal else text, end="" if terminal else "\n", file=sys.stderr)
            sys.stderr.flush()

    ticker = threading.Thread(target=tick, daemon=True)
    ticker.start()
    try:
        yield
    finally:
        done.set()
        ticker.join()
        if terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


with doing("loading fairseq and torch"):
    import argparse
    import gc
    import html
    import select
    import shutil
    import statistics
    import textwrap
    from dataclasses import dataclass
    from functools import partial
    from itertools import groupby
    from typing import Any

    import torch

    from specdec_plugins.decoding.controllers.simple import NoDrafts, Tree
    from specdec_plugins.engines.choice import ENGINES
    from specdec_plugins.evaluation.texts import read_text
    from specdec_plugins.files.command import Parser, command, put
    from specdec_plugins.files.errors import counted
    from specdec_plugins.files.lines import Line
    from specdec_plugins.inference import (
        Settings,
        Translation,
        Translator,
        load_translator,
    )
    from specdec_plugins.machine import choose_threads

WIDTH = min(80, shutil.get_terminal_size().columns)
fill = partial(textwrap.fill, width=WIDTH, break_long_words=False, break_on_hyphens=False)
END = "</s>"
BEGIN, FINISH = "\ue000", "\ue001"
"""Of what was drafted, while lines are filled: each as wide as a bracket, and in no text."""
COLOURED = sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
DRAFTED = ("\x1b[1;32m", "\x1b[0m") if COLOURED else ("[", "]")
FAINT = ("\x1b[2m", "\x1b[0m") if COLOURED else ("", "")
MARKS = (
    f"\n  {DRAFTED[0]}drafted and accepted in one step{DRAFTED[1]}, the verifier's own word "
    "between\n"
)
NEXT = """
  Next:
    . .venv/bin/activate
    specdec-translate {model} < FILE
    specdec-tune {model}      (the fastest way here)
    specdec-make-pair VERIFIER SOURCES OUT --dry-run  (your own verifier)
"""
SHOWN = 8
"""Translations that are shown; all are timed."""
WARM = 4
"""Sentences that a system decodes before it is timed."""
BEAM, BASELINE = "fairseq beam 5", "fairseq beam 1"
GREEDY, STRICT = "specdec, no drafts", "specdec"
EXAMPLES = {"multi30k.en-de": "captions"}
"""In data/, of a pair that knows little else; for others it is "example"."""


@dataclass
class Timed:
    """What a system took, and what it wrote."""

    seconds: list[float]
    """Of decoding all sentences, a number a run."""
    texts: list[str]
    accepted: float | None = None
    """Acceptance length; None without drafts."""

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    found = Parser("demo.py", __doc__)
    add, model = found.add_argument, ROOT / "checkpoints" / "wmt.en-de"
    add("--model", metavar="DIR", type=Path, default=model, help="the folder of a pair")
    add("--engine", choices=("auto", *ENGINES), default="auto", help="of all but fairseq")
    choices = ("float32", "bfloat16", "int8")
    add(
        "--precision",
        choices=choices,
        default="float32",
        help="of all; fairseq has float32 for int8",
    )
    add("--repeats", metavar="N", type=int, default=3, help="timed runs; medians are shown")
    add("--source", metavar="FILE", type=Path, help="sentences, by default the pair's examples")
    add("--lines", metavar="N", type=int, default=20, help="only the first so many")
    add("--table-only", action="store_true", help="do not show the translations")
    return found


@command("demo.py", failed=1)
def main(argv: list[str]) -> None:
    """Show translations, and what each system takes."""
    args = parser().parse_args(argv)
    for flag, value in (("--repeats", args.repeats), ("--lines", args.lines)):
        if value < 1:
            raise ValueError(f"{flag} {value}: must be at least 1")
    sources = read_text(text(args), args.lines, "--source")
    choose_threads()
    with doing("loading the pair; the first time it is compiled for this processor"):
        ours = load(args, strategy="specdec", controller=Tree(), trace=True)
    if not args.table_only:
        put(f"{MARKS}\n")
        for source, translation in zip(sources, ours.translate(sources[:SHOWN])):
            show(source.text, translation)
    # What notes every step takes time.
    recorders, ours.generator.observers = ours.generator.observers, []
    table(measure(args, ours, sources), args, ours)
    ours.generator.observers = recorders
    if not args.table_only:
        talk(ours)
        model = args.model.resolve()
        inside = model.is_relative_to(ROOT)
        put(NEXT.format(model=model.relative_to(ROOT) if inside else model) + "\n")


def text(args: argparse.Namespace) -> str:
    """The file of sentences: the one given, or the pair's examples."""
    name = EXAMPLES.get(args.model.resolve().name, "example")
    return str(args.source or ROOT / "data" / f"{name}.en")


def load(args: argparse.Namespace, **given: Any) -> Translator:
    """A translator; fairseq's, which has no int8, in float32."""
    precision = args.precision
    if given["strategy"] == "fairseq" and precision == "int8":
        precision = "float32"
    return load_translator(
        Settings.of_model(args.model, engine=args.engine, precision=precision, **given)
    )


def measure(args: argparse.Namespace, ours: Translator, sources: list[Line]) -> dict[str, Timed]:
    """Time all systems, one after another, so that only one of fairseq's is in memory."""
    found = {}
    for name, beam in ((BEAM, 5), (BASELINE, 1)):
        with doing(f"timing {name}"):
            stock = load(args, strategy="fairseq", beam=beam)
            found[name] = timed(stock, sources, args.repeats)
            # A model and its generator name each other.
            del stock
            gc.collect()
    drafting = ours.generator.controller
    with doing(f"timing {GREEDY}"):
        ours.generator.controller = NoDrafts()
        found[GREEDY] = timed(ours, sources, args.repeats)
    with doing(f"timing {STRICT}"):
        ours.generator.controller = drafting
        found[STRICT] = timed(ours, sources, args.repeats)
        found[STRICT].accepted = ours.statistics.acceptance_length
    return found


def timed(system: Translator, sources: list[Line], repeats: int) -> Timed:
    """Decoding seconds of every run, after a warm-up, and the texts."""
    seconds, texts = [], []
    system.warm_up(sources[:WARM])
    for _ in range(repeats):
        before = system.statistics.total_seconds
        texts = [translation.text for translation in system.translate(sources)]
        seconds.append(system.statistics.total_seconds - before)
    return Timed(seconds, texts)


def show(source: str, translation: Translation) -> None:
    """A sentence, and its translation with what was drafted marked."""
    steps, tokens = len(translation.accepted), len(translation.tokens)
    about = f"{counted(tokens, 'token')} in {counted(steps, 'step')}"
    put(f"{fill(source, initial_indent='  ', subsequent_indent='  ')}\n")
    put(f"{wrapped(translation.text, list(pieces(translation)))}\n")
    put(f"  {FAINT[0]}{about}{FAINT[1]}\n\n")


def pieces(translation: Translation) -> Iterator[tuple[list[str], bool]]:
    """The translation's subwords by step: what was drafted and accepted, then the verifier's."""
    assert translation.trace is not None
    for step in translation.trace.steps:
        yield step.drafted[: step.accepted], True
        yield [step.bonus] if step.bonus is not None else [], False


def wrapped(translation: str, parts: list[tuple[list[str], bool]]) -> str:
    """Lines of the translation in which what was drafted is marked.

    Letters of subwords are those of the text, in its order; blanks are put where the language wants
    them. Where a tokenizer changes letters, too, nothing is marked.
    """
    runs: list[tuple[int, bool]] = []
    letters = ""
    for number, (tokens, drafted) in enumerate(parts):
        for token in tokens:
            bare = "" if token == END else html.unescape(token.removesuffix("@@"))
            bare = bare.replace("\u2581", "").replace(" ", "")
            letters += bare
            runs += [(number, drafted)] * len(bare)
    if letters == "".join(translation.split()):
        translation = marked(translation, runs)
    lines = fill(translation, initial_indent="  ", subsequent_indent="  ")
    return lines.replace(BEGIN, DRAFTED[0]).replace(FINISH, DRAFTED[1])


def marked(translation: str, runs: list[tuple[int, bool]]) -> str:
    """The translation with marks around what was drafted; ``runs`` has of each letter the number of
    its part, and whether that was drafted."""
    following = iter(runs)
    # A blank belongs to what stands before it.
    run = (-1, False)
    owners = []
    for letter in translation:
        run = run if letter.isspace() else next(following)
        owners.append((letter, run))
    out = ""
    for (_, drafted), group in groupby(owners, key=lambda owner: owner[1]):
        words = "".join(letter for letter, _ in group)
        body = words.rstrip()
        out += f"{BEGIN}{body}{FINISH}{words[len(body) :]}" if drafted else words
    return out


def table(found: dict[str, Timed], args: argparse.Namespace, ours: Translator) -> None:
    """Print a row a system, and how it was measured."""
    baseline = found[BASELINE]
    put(f"\n  {'':18}  {'ms a sentence':>13}  {'times as fast':>13}  {'same words':>10}\n")
    for name, one in found.items():
        milliseconds = 1000 * one.median / len(one.texts)
        same = sum(a == b for a, b in zip(one.texts, baseline.texts))
        put(
            f"  {name:18}  {milliseconds:13.1f}  {baseline.median / one.median:13.1f}"
            f"  {f'{same}/{len(one.texts)}':>10}\n"
        )
    threads = counted(torch.get_num_threads(), "thread")
    notes = (
        f"Against {BASELINE}, greedy search. {counted(len(baseline.texts), 'sentence')}, one at a "
        f"time, {threads}, median of {counted(args.repeats, 'run')}; specdec by {ours.engine} in "
        f"{ours.precision}, {found[STRICT].accepted:.2f} tokens a step. Decoding only."
    )
    put(f"\n{fill(notes, initial_indent='  ', subsequent_indent='  ')}\n")


def talk(translator: Translator) -> None:
    """Translate what is typed; of a pipe, what it holds by now and later, unless it is empty."""
    if sys.stdin is None or sys.stdin.closed:
        return
    if sys.stdin.isatty():
        put("\n  Type English sentences, an empty line to end.\n\n")
    elif not select.select([sys.stdin], [], [], 1.0)[0]:
        return
    for line in sys.stdin:
        if not line.strip():
            break
        start = time.perf_counter()
        for translation in translator.translate([line.strip()]):
            milliseconds = 1000 * (time.perf_counter() - start)
            show(line.strip(), translation)
            put(f"  {milliseconds:.0f} ms\n\n")


if __name__ == "__main__":
    sys.exit(main())
