"""BLEU of a translation against its reference; the work behind scripts/ref.sh.

Two figures, a line each:

1. Tokenised, case-sensitive, compound-split BLEU-4, the figure of the SpecDec paper, in
   fairseq-score's format. Words joined by a hyphen are cut in two on both sides, then 1- to
   4-grams are counted, without smoothing.
2. Detokenised sacreBLEU with its signature.

HYP and REF are Moses-tokenised by default. The first figure is then defined on Moses tokens that
keep "a-b" whole and hold plain characters. Text tokenised with aggressive dash splitting
("a @-@ b") and HTML escaping ("&apos;"), as fairseq's own `--tokenizer moses` does, is therefore
brought back to that form first: compound splitting would turn the single token "@-@" into three
easy matches, and an escaped side would not match one that is not. The second figure detokenises
both sides, the reference too; to quote sacreBLEU, prefer --raw with the untouched reference.

With --raw both are ordinary text: the first figure tokenises them (sacremoses, no dash splitting,
no escaping), the second takes them as they are.
"""

import argparse
import os
import re
import sys
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
try:
    from sacrebleu.metrics.bleu import BLEU, BLEUScore
    from sacremoses import MosesDetokenizer

    from specdec_plugins.evaluation.bleu import (
        compound_split_bleu,
        moses_tokens,
        plain_tokens,
    )
except ImportError as error:
    sys.exit(f"ref_bleu.py: {error}: pip install sacrebleu sacremoses")

SENTENCE_END = re.compile(r"\w[.!?]$")


def fail(message: str) -> NoReturn:
    sys.exit(f"ref_bleu.py: {message}")


def read_lines(path: Path) -> list[str]:
    try:
        with open(path, encoding="utf-8", newline="\n") as file:
            lines = [line.rstrip("\r\n") for line in file]
    except OSError as error:
        fail(f"{path} cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        fail(f"{path} is not UTF-8 ({error.reason} at byte {error.start}): convert it with iconv")
    if not any(line.strip() for line in lines):
        fail(f"{path} holds no words: give a file with one sentence a line")
    return lines


def fairseq_format(score: BLEUScore) -> str:
    precisions = "/".join(f"{precision:.1f}" for precision in score.precisions)
    ratio = score.sys_len / score.ref_len
    return (
        f"BLEU4 = {score.score:.2f}, {precisions} (BP={score.bp:.3f}, ratio={ratio:.3f}, "
        f"syslen={score.sys_len}, reflen={score.ref_len})"
    )


def warn_if_misread(path: Path, lines: list[str], raw: bool) -> None:
    """Say so where most sentence ends look like the other kind of text."""
    glued = sum(bool(SENTENCE_END.search(line)) for line in lines)
    apart = sum(line.endswith((" .", " !", " ?")) for line in lines)
    if raw and apart > len(lines) / 2:
        print(f"ref_bleu.py: warning: {path} looks tokenised, and --raw was given", file=sys.stderr)
    elif not raw and glued > len(lines) / 2:
        print(
            f"ref_bleu.py: warning: {path} looks untokenised: should --raw be given?",
            file=sys.stderr,
        )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ref.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("hyp", type=Path, metavar="HYP", help="translations, one a line")
    parser.add_argument("ref", type=Path, metavar="REF", help="references, line by line")
    parser.add_argument("--raw", action="store_true", help="HYP and REF are untokenised text")
    parser.add_argument(
        "--lang", default="de", help="language of HYP and REF, for Moses (default: de)"
    )
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    hypotheses, references = read_lines(args.hyp), read_lines(args.ref)
    if len(hypotheses) != len(references):
        fail(
            f"{args.hyp} has {len(hypotheses)} lines and {args.ref} has {len(references)}: "
            "give files that match line by line"
        )
    for path, lines in ((args.hyp, hypotheses), (args.ref, references)):
        warn_if_misread(path, lines, args.raw)

    detokenizer = MosesDetokenizer(lang=args.lang)
    tokenised, detokenised = [], []
    for lines in (hypotheses, references):
        if args.raw:
            tokenised.append(moses_tokens(lines, args.lang))
            detokenised.append(lines)
        else:
            tokenised.append(plain_tokens(lines, args.lang))
            detokenised.append([detokenizer.detokenize(line.split()) for line in lines])

    sacre = BLEU()
    score = sacre.corpus_score(detokenised[0], [detokenised[1]])
    signed = score.format(signature=str(sacre.get_signature()))
    put(f"{fairseq_format(compound_split_bleu(*tokenised))}\n{signed}\n")


def put(text: str) -> None:
    """In one piece, so that `ref.sh … | head -1` does not break the pipe."""
    try:
        print(text, end="", flush=True)
    except OSError as error:
        # Or Python would try again when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        fail(f"standard output cannot be written to ({error.strerror}): make room")


if __name__ == "__main__":
    main()
