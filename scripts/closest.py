#!/usr/bin/env python3
"""Of several outputs for each line, take the one that is most like its reference.

    scripts/inference.py ... --strategy fairseq --beam 6 --nbest 6 --output-path beam.txt
    scripts/closest.py beam.txt references.txt > closest.txt

A line of the first file holds outputs with tabs between them; the reference is the second file's
line of the same number. The output with the highest sentence BLEU is written, of equals the first.
Outputs and references are ordinary text, or text in tokens or subwords; the markers of subwords do
not count.

Training text that is chosen so lies between the references and what a model says by itself: the
sequence-level interpolation of Kim and Rush (2016, "Sequence-Level Knowledge Distillation", section
3.3). distill.sh --interpolate does it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from sacrebleu.metrics.bleu import BLEU

MARKER = "@@ "
# Without effective order a sentence that shares no four words would score by length alone.
METRIC = BLEU(effective_order=True, tokenize="none")


def fail(message: str) -> NoReturn:
    """End with status 1 and one line."""
    sys.exit(f"closest.py: {message}")


def lines_of(path: str) -> list[str]:
    """The lines of a UTF-8 file without their ends."""
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except OSError as error:
        fail(f"{path}: cannot be read ({error.strerror}); check the path")
    except UnicodeDecodeError as error:
        fail(f"{path}: is not UTF-8 ({error.reason} at byte {error.start}); convert it (iconv)")
    return text.removesuffix("\n").split("\n") if text else []


def words(text: str) -> str:
    """Text whose subwords are joined."""
    return f"{text} ".replace(MARKER, "").rstrip()


def closest(outputs: list[str], reference: str) -> str:
    """The output with the highest sentence BLEU against the reference, of equals the first."""
    wanted = [words(reference)]
    return max(outputs, key=lambda output: METRIC.sentence_score(words(output), wanted).score)


def chosen(outputs: str, references: str) -> Iterator[str]:
    """The closest output of each line of two files."""
    several, wanted = lines_of(outputs), lines_of(references)
    if len(several) != len(wanted):
        fail(
            f"{references}: has {len(wanted)} lines, {outputs} has {len(several)}; give a "
            "reference for every line"
        )
    for line, reference in zip(several, wanted):
        yield closest(line.split("\t"), reference)


def main() -> None:
    """Write the closest outputs to standard output."""
    if len(sys.argv) != 3:
        sys.stderr.write(__doc__)
        sys.exit(2)
    sys.stdout.reconfigure(encoding="utf-8")
    sys.stdout.writelines(f"{line}\n" for line in chosen(*sys.argv[1:]))


if __name__ == "__main__":
    main()
