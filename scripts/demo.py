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

import argparse
import gc
import html
import os
import select
import shutil
import sys
import textwrap
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from specdec_plugins.decoding.controllers.simple import NoDrafts, Tree
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.engines.choice import ENGINES
from specdec_plugins.evaluation.texts import read_text
from specdec_plugins.files.command import Parser, command, positive, put, tell
from specdec_plugins.files.errors import counted
from specdec_plugins.files.lines import Line
from specdec_plugins.inference import Settings, Translation, Translator, load_translator
from specdec_plugins.machine import choose_threads

ROOT = Path(__file__).resolve().parent.parent
WIDTH = min(80, shutil.get_terminal_size().columns)
fill = partial(
    textwrap.fill,
    width=WIDTH,
    break_long_words=False,
    break_on_hyphens=False,
    initial_indent="  ",
    subsequent_indent="  ",
)
BEGIN, FINISH = "\ue000", "\ue001"
"""Marks of drafted text while lines are filled: each as wide as a bracket, and in no text."""
COLOURED = sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
DRAFTED = ("\x1b[1;32m", "\x1b[0m") if COLOURED else ("[", "]")
MARKS = "\n  {0}drafted and accepted in one step{1}, the verifier's own word between\n\n"
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
COPY = "specdec, an int8 copy"
Timed = dict[str, tuple[float, list[str]]]
"""Median seconds of all sentences, and the translations, by system."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = Parser(__doc__)
    add, model = result.add_argument, ROOT / "checkpoints" / "wmt.en-de"
    add("--model", metavar="DIR", type=Path, default=model, help="the folder of a pair")
    add("--engine", choices=("auto", *ENGINES), default="auto", help="of all but fairseq")
    choices = ("float32", "int8")
    add("--precision", choices=choices, default="float32", help="of all; of fairseq never int8")
    add("--repeats", metavar="N", type=positive, default=3, help="timed runs; medians are shown")
    add("--source", metavar="FILE", type=Path, help="sentences, by default the pair's examples")
    add("--lines", metavar="N", type=int, default=20, help="only the first so many")
    add("--table-only", action="store_true", help="do not show the translations")
    return result


@command(failed=1)
def main(argv: list[str]) -> None:
    """Show translations, and what each system takes."""
    args = parser().parse_args(argv)
    captions = args.model.resolve().name == "multi30k.en-de"  # a pair that knows little else
    examples = ROOT / "data" / ("captions.en" if captions else "example.en")
    sources = read_text(str(args.source or examples), args.lines, "--source")
    choose_threads()
    tell("loading the pair, and compiling it for this processor")
    ours = load(args, strategy="specdec", controller=Tree(), trace=True)
    if not args.table_only:
        put(MARKS.format(*DRAFTED))
        for source, translation in zip(sources, ours.translate(sources[:SHOWN])):
            show(source.text, translation)
    # Recording every step takes time.
    recorders, ours.generator.observers = ours.generator.observers, []
    timed = measure(args, ours, sources)
    table(timed, args, ours)
    ours.generator.observers = recorders
    if not args.table_only:
        talk(ours)
        model = args.model.resolve()
        inside = model.is_relative_to(ROOT)
        put(NEXT.format(model=model.relative_to(ROOT) if inside else model))


def load(args: argparse.Namespace, **options: Any) -> Translator:
    """Return a translator; fairseq's, which has no int8, in float32."""
    stock = options["strategy"] == "fairseq" and args.precision == "int8"
    precision = "float32" if stock else args.precision
    settings = Settings.of_model(args.model, engine=args.engine, precision=precision, **options)
    return load_translator(settings)


def measure(args: argparse.Namespace, ours: Translator, sources: list[Line]) -> Timed:
    """Time all systems, one after another, so that only one of fairseq's is in memory."""
    timed = {}
    for name, beam in ((BEAM, 5), (BASELINE, 1)):
        tell(f"timing {name}")
        stock = load(args, strategy="fairseq", beam=beam)
        timed[name] = run(stock, sources, args.repeats)
        # A model and its generator name each other.
        del stock
        gc.collect()
    drafting = ours.generator.controller
    for name, controller in ((GREEDY, NoDrafts()), (STRICT, drafting)):
        tell(f"timing {name}")
        # Tokens a step are those of the last system.
        ours.generator.controller, ours.generator.statistics = controller, DecodingStatistics()
        timed[name] = run(ours, sources, args.repeats)
    tell(f"timing {COPY}")
    copy = load(args, strategy="specdec", drafts="copy")
    if copy.settings.draft_source:  # not where nothing has int8, or all is in int8
        timed[COPY] = run(copy, sources, args.repeats)
    return timed


def run(system: Translator, sources: list[Line], repeats: int) -> tuple[float, list[str]]:
    """Return the median seconds of decoding, after a warm-up, and the texts."""
    seconds, texts = [], []
    list(system.translate(sources[:WARM]))
    for _ in range(repeats):
        before = system.statistics.total_seconds
        texts = [translation.text for translation in system.translate(sources)]
        seconds.append(system.statistics.total_seconds - before)
    return median(seconds), texts


def show(source: str, translation: Translation) -> None:
    """Print a sentence, and its translation with what was drafted marked."""
    steps = counted(len(translation.accepted), "step")
    lines = fill(marked(translation)).replace(BEGIN, DRAFTED[0]).replace(FINISH, DRAFTED[1])
    put(f"{fill(source)}\n{lines}\n  {counted(len(translation.tokens), 'token')} in {steps}\n\n")


def marked(translation: Translation) -> str:
    """Return the translation with marks around what was drafted and accepted in one step.

    Letters of subwords are those of the text, in its order; blanks are put where the language wants
    them. Where a tokenizer changes letters, too, nothing is marked.
    """
    owners: list[tuple[int, bool]] = []  # step of each letter, and whether it was drafted
    letters = ""
    assert translation.trace is not None
    for number, step in enumerate(translation.trace.steps):
        drafted = [(token, True) for token in step.drafted[: step.accepted]]
        for token, owned in [*drafted, (step.bonus, False)]:
            bare = "" if token in (None, "</s>") else html.unescape(token.removesuffix("@@"))
            bare = bare.replace("\u2581", "").replace(" ", "")
            letters += bare
            owners += [(number, owned)] * len(bare)
    if letters != "".join(translation.text.split()):
        return translation.text
    out, blanks, last = "", "", (-1, False)
    following = iter(owners)
    for letter in translation.text:
        if letter.isspace():
            blanks += letter
            continue
        owner = next(following)
        out += blanks if owner == last else FINISH * last[1] + blanks + BEGIN * owner[1]
        out, blanks, last = out + letter, "", owner
    return out + FINISH * last[1]


def table(timed: Timed, args: argparse.Namespace, ours: Translator) -> None:
    """Print a row a system, and how it was measured."""
    base, expected = timed[BASELINE]
    put(f"\n  {'':22}  {'ms a sentence':>13}  {'times as fast':>13}  {'same words':>10}\n")
    for name, (seconds, texts) in timed.items():
        same = f"{sum(a == b for a, b in zip(texts, expected))}/{len(texts)}"
        milliseconds = 1000 * seconds / len(texts)
        put(f"  {name:22}  {milliseconds:13.1f}  {base / seconds:13.1f}  {same:>10}\n")
    notes = (
        f"Against {BASELINE}, greedy search. {counted(len(expected), 'sentence')}, one at a time, "
        f"{counted(torch.get_num_threads(), 'thread')}, median of {counted(args.repeats, 'run')}; "
        f"specdec by {ours.engine} in {ours.precision}, "
        f"{ours.statistics.acceptance_length:.2f} tokens a step. Decoding only."
    )
    put(f"\n{fill(notes)}\n")


def talk(translator: Translator) -> None:
    """Translate what is typed; of a pipe, what it holds by now and later, unless it is empty."""
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
