#!/usr/bin/env python3
"""Write, of several outputs for each line, the one that is most like its reference.

    specdec-translate ... --strategy fairseq --beam 6 --nbest 6 --output-path beam.txt
    scripts/closest.py beam.txt references.txt >closest.txt

A line of the first file holds outputs with tabs between them. The output with the highest sentence
BLEU is written, the first of equals; `@@ `, the marker of subwords, does not count. This is the
sequence-level interpolation of Kim and Rush (2016), section 3.3; distill.sh --interpolate uses it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import installed  # noqa: F401 (first)
from sacrebleu.metrics.bleu import BLEU
from texts import aligned

from specdec_plugins.files.command import Parser, command

# Without effective order a sentence that shares no four words would score by length alone.
METRIC = BLEU(effective_order=True, tokenize="none")


def words(text: str) -> str:
    """Return text whose subwords are joined."""
    joined = f"{text} ".replace("@@ ", "")
    return joined.rstrip()


@command()
def main(argv: Sequence[str]) -> None:
    """Write the closest outputs to standard output."""
    parser = Parser(__doc__)
    parser.add_argument("beams", metavar="BEAMS", help="outputs, with tabs between those of a line")
    parser.add_argument("references", metavar="REFERENCES", help="a line for each line of BEAMS")
    args = parser.parse_args(argv)
    for beam, reference in zip(*aligned(args.beams, args.references), strict=True):
        wanted = [words(reference)]
        scores = {out: METRIC.sentence_score(words(out), wanted).score for out in beam.split("\t")}
        closest = max(scores, key=scores.__getitem__)
        sys.stdout.buffer.write(closest.encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
