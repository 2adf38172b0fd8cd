"""The text that a drafter learns: held-out lines, segmentation, and outputs fit to be learnt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from random import Random

import numpy as np

from specdec_plugins.decoding.limits import LARGEST, GenerationLimits
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.lines import InputLines
from specdec_plugins.files.output import JsonObject, whole_file, write_whole
from specdec_plugins.inference.text import TextCodec
from specdec_plugins.jobs.loading import load
from specdec_plugins.jobs.make_pair.job import Done, PairJob

#: Limits of an output by its source: a longer one is no translation, and is left out.
LIMITS = GenerationLimits(max_len_a=2.0, max_len_b=10)
#: Minimum lines of a text.
ENOUGH = 100
#: Maximum lines that are held out to measure on.
HELD_OUT = 500
#: Lines of the pair's example.
EXAMPLE = 40
#: Maximum share of unknown tokens.
MAX_UNKNOWN = 0.1


def worded_lines(path: Path) -> Iterator[str]:
    """Yield the lines with words of a text."""
    with InputLines.open(str(path)) as lines:
        for line in lines:
            if text := line.text.replace("\r", " ").strip():
                yield text
        lines.check()


def check_enough(path: Path) -> None:
    """Refuse a text that is too small."""
    count = sum(1 for _ in islice(worded_lines(path), ENOUGH))
    if count < ENOUGH:
        raise InferenceError(
            f"SOURCES {path}: has {count} lines with words; give at least {ENOUGH}, better some "
            "ten thousand"
        )


def segment(job: PairJob, _done: Done) -> JsonObject:
    """Write the segmented text, held-out lines first, and those to measure on as they are.

    Returns the files, the number of lines of each kind, and of lines that are too long.
    """
    codec = load(job.settings(), job.quiet).codec
    layout = job.layout
    facts = Counter[str]()
    count = sum(1 for _ in worded_lines(job.sources))
    held_out = min(HELD_OUT, max(20, count // 20))
    numbers = {*Random(1).sample(range(count), held_out)}
    drawn = [text for number, text in enumerate(worded_lines(job.sources)) if number in numbers]
    valid = [text for text in drawn if _tokens(codec, text)]
    for path, lines in ((layout.valid_text, valid), (layout.example, valid[:EXAMPLE])):
        write_whole(path, (text.encode() + b"\n" for text in lines))

    def segmented() -> Iterator[bytes]:
        # As tokens: lines may differ in their blanks alone.
        held_out = {tuple(_tokens(codec, text)) for text in valid}
        rest = (_tokens(codec, text) for text in worded_lines(job.sources))
        others = (tokens for tokens in rest if tuple(tokens) not in held_out)
        for tokens in chain((_tokens(codec, text) for text in valid), others):
            if not tokens:
                facts["too_long"] += 1
                continue
            facts["lines"] += 1
            facts["tokens"] += len(tokens)
            facts["unknown"] += sum(token not in codec.source.indices for token in tokens)
            line = " ".join(tokens)
            yield line.encode() + b"\n"

    write_whole(layout.sources, segmented())
    if facts["unknown"] > MAX_UNKNOWN * facts["tokens"]:
        raise InferenceError(
            f"SOURCES {job.sources}: of {facts['tokens']} tokens the dictionary lacks "
            f"{facts['unknown']}; give text of the verifier's source language, and --tokenizer "
            "and --bpe as in its training"
        )
    learned = facts["lines"] - len(valid)
    if not learned:
        raise InferenceError(f"SOURCES {job.sources}: repeats a few lines; give more that differ")
    return {
        "lines": {"valid": len(valid), "train": learned},
        "too_long": facts["too_long"],
        "files": [layout.sources, layout.valid_text, layout.example],
    }


def _tokens(codec: TextCodec, text: str) -> list[str]:
    """Return a line's tokens; none if the encoder has not as many positions."""
    tokens = codec.segment(text).split()
    return tokens if len(tokens) < codec.longest else []


def collect(job: PairJob, lines: dict[str, int]) -> JsonObject:
    """Write the sources and outputs that a drafter is to learn from; return counts.

    ``lines`` are those of each kind, in the order of the text.
    """
    layout = job.layout
    learned = Counter[str]()
    run_on = 0
    layout.text.mkdir(exist_ok=True)
    with open(layout.sources, "rb") as sources, open(layout.outputs, "rb") as outputs:
        pairs = zip(sources, outputs, strict=True)
        for kind, count in lines.items():
            first, second = (layout.text / f"{kind}.{language}" for language in job.languages)
            with whole_file(first) as source, whole_file(second) as target:
                for text, output in islice(pairs, count):
                    length = len(output.split())
                    if length >= LIMITS.max_length(len(text.split()) + 1, LARGEST):
                        run_on += 1
                    elif length:
                        learned[kind] += 1
                        source.write(text)
                        target.write(output)
    if run_on > sum(lines.values()) / 2:
        raise InferenceError(
            f"VERIFIER: {run_on} of its outputs run to the length limit; it does not translate "
            "yet: train it for longer"
        )
    return {"run_on": run_on, "learned": dict(learned)}


def frequent_tokens(path: Path, entries: int) -> int | None:
    """Return how many of a text's most frequent tokens, all but a thousandth, a drafter drafts
    from; None if that saves less than a quarter of a dictionary of so many ``entries``."""
    with open(path, encoding="utf-8") as lines:
        seen = Counter(chain.from_iterable(line.split() for line in lines))
    covered = np.cumsum(sorted(seen.values(), reverse=True))
    wanted = 0.999 * covered[-1]
    number = int(np.searchsorted(covered, wanted)) + 1
    rounded = -(-number // 100) * 100
    return rounded if rounded < min(0.75 * entries, len(seen)) else None
