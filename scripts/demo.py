#!/usr/bin/env python3
"""Translate the examples (and anything typed or piped) with a shipped pair, and time it.

    scripts/demo.py --model checkpoints/multi30k.en-de --precision int8

First the translations, one sentence at a time: what one step accepted of its draft stands together,
and the verifier's own tokens between. Then a table of what fairseq and our ways to decode take.
"""

from __future__ import annotations

import html
import os
import select
import shutil
import sys
import textwrap
import time
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from statistics import median

import installed
import torch

import specdec_plugins.inference  # noqa: F401 (first, for it silences fairseq)
from specdec_plugins.engines.choice import ENGINES
from specdec_plugins.evaluation.texts import read_text
from specdec_plugins.files.command import Parser, command, positive, put
from specdec_plugins.files.errors import counted
from specdec_plugins.files.lines import Line
from specdec_plugins.inference import Settings, Translation, Translator, load_translator
from specdec_plugins.inference.systems import parse_system
from specdec_plugins.jobs import progress
from specdec_plugins.jobs.loading import load
from specdec_plugins.machine import choose_threads

ROOT = installed.ROOT
WIDTH = min(80, shutil.get_terminal_size().columns)
BEGIN = "\ue000"
FINISH = "\ue001"
"""Marks of drafted text while lines are filled: each as wide as a bracket, and in no text."""
COLOURED = sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
DRAFTED = ("\x1b[1;32m", "\x1b[0m") if COLOURED else ("[", "]")
MARKS = "\n  {0}drafted and accepted in one step{1}, the verifier's own word between\n\n"
NEXT = """
  Next:
    . .venv/bin/activate
    specdec-translate {model} --input-path data/{text}
    specdec-tune {model}  # the fastest way here
    specdec-translate {model}/verifier.pt  # no drafter
    pip install -e '.[serve]'
    specdec-serve {model}  # a page, and HTTP for programs

"""
WARM = 2
"""Sentences that a system decodes before it is timed, which tell how long all will take."""
PROPORTION = "{desc} {percentage:3.0f}%|{bar}| {elapsed}"
Timed = dict[str, tuple[float, list[str]]]
"""Median seconds of all sentences, and the translations, by system."""
BEAM = "fairseq's beam search"
BASELINE = "fairseq's greedy search"
STRICT = "drafts of the drafter"
SYSTEMS = {
    BEAM: "fairseq@beam=5",
    BASELINE: "fairseq@beam=1",
    "greedy, no drafts": "AR",
    STRICT: "tree",
    "drafts of an int8 copy": "auto@drafts=copy",
}


@command(failed=1)
def main(argv: list[str]) -> None:
    """Show translations, and what each system takes."""
    parser = Parser(__doc__)
    add = parser.add_argument
    model = ROOT / "checkpoints" / "wmt.en-de"
    add("--model", metavar="DIR", type=Path, default=model, help="the folder of a pair")
    add("--engine", choices=("auto", *ENGINES), default="auto", help="of all but fairseq")
    add("--precision", choices=("float32", "int8"), default="float32", help="of all but fairseq")
    add("--repeats", metavar="N", type=positive, default=3, help="timed runs; medians are shown")
    add("--lines", metavar="N", type=positive, default=8, help="only the first so many")
    args = parser.parse_args(argv)
    model = args.model.resolve()
    text = "captions.en" if model.name == "multi30k.en-de" else "example.en"  # it knows no more
    sources = read_text(str(ROOT / "data" / text), args.lines)
    choose_threads()
    base = Settings.of_model(model, engine=args.engine, precision=args.precision)
    ours = load(replace(parse_system(SYSTEMS[STRICT], base), trace=True))
    put(MARKS.format(*DRAFTED))
    for source, translation in zip(sources, ours.translate(sources)):
        show(source.text, translation)
    recorders = ours.generator.observers
    ours.generator.observers = []  # they take time
    table(measure(base, ours, sources, args.repeats), ours, args.repeats)
    ours.generator.observers = recorders
    talk(ours)
    if model.is_relative_to(ROOT):
        model = model.relative_to(ROOT)
    put(NEXT.format(model=model, text=text))


def measure(base: Settings, ours: Translator, sources: list[Line], repeats: int) -> Timed:
    """Time all systems, in turn."""
    systems: dict[str, Translator] = {}
    expected: dict[str, int] = {}  # milliseconds a run
    share = sum(len(line.text) for line in sources) / sum(len(line.text) for line in sources[:WARM])
    with progress(False, total=len(SYSTEMS), unit="system", leave=False) as bar:
        for name, text in SYSTEMS.items():
            bar.set_description_str(f"loading {name}")
            settings = parse_system(text, base)
            system = ours if name == STRICT else load_translator(settings)
            bar.update()
            if settings.drafts and not system.settings.kind:
                continue  # no int8 is installed, or all is in int8
            seconds, _ = run(system, sources[:WARM])
            expected[name] = round(1000 * share * seconds)
            systems[name] = system
    total = repeats * sum(expected.values())
    put(f"  Timing {counted(len(systems), 'way')} to decode takes about {total / 1000:.0f} s.\n")
    seconds_of: dict[str, list[float]] = {name: [] for name in systems}
    texts = {}
    with progress(False, total=total, unit="ms", leave=False, bar_format=PROPORTION) as bar:
        for _ in range(repeats):
            for name, system in systems.items():
                bar.set_description_str(f"timing {name}")
                seconds, texts[name] = run(system, sources)
                seconds_of[name].append(seconds)
                bar.update(expected[name])
    return {name: (median(seconds_of[name]), texts[name]) for name in systems}


def run(system: Translator, sources: list[Line]) -> tuple[float, list[str]]:
    """Return the seconds that decoding took, and the translations."""
    before = system.statistics.total_seconds
    texts = [translation.text for translation in system.translate(sources)]
    return system.statistics.total_seconds - before, texts


def fill(text: str) -> str:
    """Return text in lines of the terminal's width, indented by two blanks."""
    options = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.indent(textwrap.fill(text, WIDTH - 2, **options), "  ")


def show(source: str, translation: Translation) -> None:
    """Print a sentence, and its translation with what was drafted marked."""
    steps = counted(len(translation.accepted), "step")
    tokens = counted(len(translation.tokens), "token")
    lines = fill(marked(translation))
    lines = lines.replace(BEGIN, DRAFTED[0]).replace(FINISH, DRAFTED[1])
    put(f"{fill(source)}\n{lines}\n  {tokens} in {steps}\n\n")


def marked(translation: Translation) -> str:
    """Return the translation with marks around what was drafted and accepted in one step.

    Letters of subwords are those of the text, in its order; blanks are put where the language wants
    them. Where a tokenizer changes letters, too, nothing is marked.
    """
    letters: list[tuple[str, int]] = []  # each with the step that drafted it, or 0
    assert translation.trace is not None
    for number, step in enumerate(translation.trace.steps, 1):
        for slot, token in enumerate([*step.drafted[: step.accepted], step.bonus]):
            if token in (None, "</s>"):
                continue
            bare = html.unescape(token.removesuffix("@@"))
            drafter = number if slot < step.accepted else 0
            letters += [(letter, drafter) for letter in bare if letter not in "\u2581 "]
    text = translation.text
    if [letter for letter, _ in letters] != list("".join(text.split())):
        return text
    following = iter(letters)
    steps = [0 if letter.isspace() else next(following)[1] for letter in text]
    for index, letter in enumerate(text[1:-1], 1):
        if letter.isspace() and steps[index - 1] == steps[index + 1]:
            steps[index] = steps[index - 1]
    out = ""
    for step, group in groupby(zip(steps, text), lambda pair: pair[0]):
        piece = "".join(letter for _, letter in group)
        if step:
            piece = f"{BEGIN}{piece}{FINISH}"
        out += piece
    return out


def table(timed: Timed, ours: Translator, repeats: int) -> None:
    """Print a row a system, and how it was measured."""
    base, expected = timed[BASELINE]
    put(f"\n  {'':23}  {'ms a sentence':>13}  {'times as fast':>13}  {'same words':>10}\n")
    for name, (seconds, texts) in timed.items():
        same = ""
        if name != BEAM:
            equal = sum(map(str.__eq__, texts, expected))
            same = f"{equal}/{len(texts)}"
        milliseconds = 1000 * seconds / len(texts)
        put(f"  {name:23}  {milliseconds:13.1f}  {base / seconds:13.1f}  {same:>10}\n")
    notes = (
        f"Against {BASELINE}. {counted(len(expected), 'sentence')}, one at a time, "
        f"{counted(torch.get_num_threads(), 'thread')}, median of {counted(repeats, 'run')}; "
        f"specdec by {ours.engine} in {ours.precision}, {ours.statistics.acceptance_length:.2f} "
        "tokens a step with the drafter. Decoding only."
    )
    put(f"\n{fill(notes)}\n")


def talk(translator: Translator) -> None:
    """Translate what is typed; of a pipe, what it holds by now and later, unless it is empty."""
    if sys.stdin is None:  # closed
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
