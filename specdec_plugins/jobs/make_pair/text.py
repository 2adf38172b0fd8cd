"""The text of a pair's making: what is held out, how it is segmented, and what of it is learnt."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from random import Random

from specdec_plugins.decoding.limits import LARGEST, GenerationLimits
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.lines import InputLines
from specdec_plugins.files.output import JsonObject, whole_file, write_whole
from specdec_plugins.inference.translator import Translator
from specdec_plugins.jobs.make_pair.job import PairJob

logger = logging.getLogger(__name__)

LIMITS = GenerationLimits(max_len_a=2.0, max_len_b=10)
"""Of an output, in tokens of its source: what runs on is no translation, and is left out."""
LEAST, FEW = 100, 5000
"""Lines that there must be, and below which there is a warning."""
HELD_OUT, HEAD_LINES = 500, 20_000
"""Most lines that are held out to measure on, and for a head."""
EXAMPLE = 40
"""Lines of the pair's example."""
MOST, SOME = 0.1, 0.02
"""Parts of a text that are refused, and warned of."""
LONG = 1.5
"""Tokens of the output for one of the source, which are many."""
REPEATS = re.compile(r"(?:^| )(\S+(?: \S+){0,3})(?: \1){3}(?= |$)")
"""One to four tokens, four times one after the other."""


def segment(job: PairJob, translator: Translator, note: Callable[[int], object]) -> JsonObject:
    """Write the segmented text, lines that are held out first, and those to measure on as they are.

    Args:
        translator: the pair's verifier, whose segmentation this is.
        note: is told of the lines done.

    Returns:
        how many lines there are of each kind, and how many tokens, unknown ones among them.
    """
    worded = sum(1 for _ in worded_lines(job.sources))
    held = min(HELD_OUT, max(20, worded // 20))
    of_head = head_lines(worded) if job.heads else 0
    chosen = Random(1).sample(range(worded), held + of_head)
    texts = dict.fromkeys(chosen, "")
    texts.update(
        (number, text) for number, text in enumerate(worded_lines(job.sources)) if number in texts
    )
    usable = _Usable(translator, note)
    valid = [text for number in chosen[:held] if usable.segmented(text := texts[number])]
    head = [text for number in chosen[held:] if usable.segmented(text := texts[number])]
    write_whole(job.layout.valid_text, (f"{text}\n".encode() for text in valid))
    seen = set(texts.values())
    others = (text for text in worded_lines(job.sources) if text not in seen)
    usable = _Usable(translator, note)
    lines = filter(None, map(usable.segmented, chain(valid, head, others)))
    write_whole(job.layout.sources, (f"{line}\n".encode() for line in lines))
    usable.check(job.sources)
    train = usable.lines - len(valid) - len(head)
    counts = {"valid": len(valid), "head": len(head), "train": train}
    return {"lines": counts, "too_long": usable.too_long, **usable.tokens}


def worded_lines(path: Path) -> Iterator[str]:
    """The lines with words of a text."""
    with InputLines.open(str(path), "SOURCES") as lines:
        yield from (text for line in lines if (text := line.text.replace("\r", " ").strip()))
        lines.check()


def check_enough(path: Path) -> None:
    found = sum(1 for _ in islice(worded_lines(path), LEAST))
    if found < LEAST:
        raise InferenceError(
            f"SOURCES {path}: has {found} lines with words; give at least {LEAST}, better some ten "
            "thousand"
        )


def head_lines(lines: int) -> int:
    """How many of the lines of a text are kept for a head."""
    return min(HEAD_LINES, lines // 10)


class _Usable:
    """Lines that the verifier can read, as it reads them."""

    def __init__(self, translator: Translator, note: Callable[[int], object]) -> None:
        self._codec, self._note = translator.codec, note
        self.lines = self.too_long = 0
        self.tokens = {"tokens": 0, "unknown": 0}

    def segmented(self, text: str) -> str | None:
        """The line's tokens; None if there are none, or more than the encoder has positions for."""
        self._note(1)
        tokens = self._codec.segment(text).split()
        if not 0 < len(tokens) < self._codec.longest:
            self.too_long += len(tokens) > 0
            return None
        known = self._codec.source.indices
        self.lines += 1
        self.tokens["tokens"] += len(tokens)
        self.tokens["unknown"] += sum(token not in known for token in tokens)
        return " ".join(tokens)

    def check(self, path: Path) -> None:
        """
        Raises:
            InferenceError: the dictionary lacks too many tokens.
        """
        total, unknown = self.tokens["tokens"], self.tokens["unknown"]
        message = (
            f"SOURCES {path}: of {total} tokens the dictionary lacks {unknown} "
            f"({100 * unknown / max(total, 1):.1f} %)"
        )
        if unknown > MOST * total:
            raise InferenceError(
                f"{message}; give text of the verifier's source language, and --tokenizer and "
                "--bpe as in its training"
            )
        if unknown > SOME * total:
            logger.warning("%s: is it of the verifier's language and segmentation?", message)


def collect(job: PairJob, lines: dict[str, int]) -> JsonObject:
    """Write the sources and outputs of each kind that a drafter is to learn from.

    Args:
        lines: of each kind, in the order of the text.

    Returns:
        what was left out, and what the outputs are like.
    """
    found: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    kinds = chain.from_iterable([name] * count for name, count in lines.items())
    layout = job.layout
    layout.text.mkdir(exist_ok=True)
    with ExitStack() as files:
        read = [
            files.enter_context(open(path, encoding="utf-8", newline="\n"))
            for path in (layout.sources, layout.outputs)
        ]
        written = {
            kind: [
                files.enter_context(whole_file(layout.text / f"{kind}.{language}"))
                for language in job.languages
            ]
            for kind in lines
        }
        for kind, source, output in zip(kinds, *read, strict=True):
            size, said = len(source.split()), len(output.split())
            found.update(source_tokens=size, output_tokens=said)
            found["repeated"] += REPEATS.search(output) is not None
            if 0 < said < LIMITS.max_length(size + 1, LARGEST):
                kept[kind] += 1
                for file, text in zip(written[kind], (source, output), strict=True):
                    file.write(text.encode())
            else:
                found["run_on" if said else "empty"] += 1
    _warn(found, sum(lines.values()))
    return {**found, "kept": dict(kept)}


def _warn(found: Counter[str], lines: int) -> None:
    run_on = (
        f"of {lines} outputs {found['run_on']} run to the length limit, twice the source's tokens "
        f"and {LIMITS.max_len_b}"
    )
    if found["run_on"] > lines / 2:
        raise InferenceError(f"VERIFIER: {run_on}; it does not translate yet: train it for longer")
    if found["run_on"] > SOME * lines:
        logger.warning("VERIFIER: %s; they are left out", run_on)
    if found["output_tokens"] > LONG * found["source_tokens"]:
        logger.warning(
            "VERIFIER: its outputs have %.1f times the tokens of their sources",
            found["output_tokens"] / found["source_tokens"],
        )
    if found["repeated"] > SOME * lines:
        logger.warning(
            "VERIFIER: %d of %d outputs repeat themselves (some tokens four times in a row)",
            found["repeated"],
            lines,
        )


def frequent_tokens(path: Path, entries: int) -> int | None:
    """How many of the most frequent tokens of a text a drafter does well to draft from: they are
    all but a thousandth of it. None where that saves less than a quarter of the dictionary.

    Args:
        entries: of the dictionary.
    """
    with open(path, encoding="utf-8") as lines:
        seen = Counter(chain.from_iterable(line.split() for line in lines))
    total = covered = 0
    total = sum(seen.values())
    for number, (_, count) in enumerate(seen.most_common(), start=1):
        covered += count
        if covered >= 0.999 * total:
            rounded = -(-number // 100) * 100
            return rounded if rounded < min(0.75 * entries, len(seen)) else None
    return None
