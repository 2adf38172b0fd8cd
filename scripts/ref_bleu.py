"""BLEU of a translation against its reference; the work behind scripts/ref.sh.

Two figures, a line each:

1. Tokenised, case-sensitive, compound-split BLEU-4, the figure of the SpecDec paper, in
   fairseq-score's format. Words joined by a hyphen are cut in two on both sides, then 1- to
   4-grams are counted, without smoothing.
2. Detokenised sacreBLEU with its signature.

HYP and REF are Moses-tokenised by default. The first figure is defined on tokens that keep "a-b"
whole and hold plain characters, so "a @-@ b" and "&apos;", which fairseq's `--tokenizer moses`
writes, are undone first: compound splitting would turn "@-@" into three easy matches. The second
figure detokenises both sides; to quote sacreBLEU, prefer --raw with the untouched reference.

With --raw both are ordinary text: the first figure tokenises them (sacremoses, no dash splitting,
no escaping), the second takes them as they are. Text without blanks is cut by sacreBLEU's tokenizer
of --lang (zh; ja and ko with MeCab), or into characters if REF is in a script without blanks.
"""

import sys

import installed  # noqa: F401 (first)
from sacrebleu.metrics.bleu import BLEUScore
from sacremoses import MosesDetokenizer
from texts import aligned

from specdec_plugins.evaluation import bleu
from specdec_plugins.files.command import Parser, command, put


def fairseq_format(score: BLEUScore) -> str:
    """Return a score as fairseq-score prints it."""
    precisions = "/".join(f"{precision:.1f}" for precision in score.precisions)
    return (
        f"BLEU4 = {score.score:.2f}, {precisions} (BP={score.bp:.3f}, ratio={score.ratio:.3f}, "
        f"syslen={score.sys_len}, reflen={score.ref_len})"
    )


@command(failed=1)
def main(argv: list[str]) -> None:
    """Print both figures."""
    parser = Parser(__doc__)
    parser.prog = "ref.sh"
    parser.add_argument("hyp", metavar="HYP", help="translations, one a line")
    parser.add_argument("ref", metavar="REF", help="references, line by line")
    parser.add_argument("--raw", action="store_true", help="HYP and REF are untokenised text")
    parser.add_argument("--lang", default="de", help="language of HYP and REF (de)")
    args = parser.parse_args(argv)
    sides = aligned(args.hyp, args.ref)
    for path, lines in zip((args.hyp, args.ref), sides, strict=True):
        if not any(map(str.strip, lines)):
            raise ValueError(f"{path}: holds no words")
    sacre = bleu.metric_of(args.lang, sides[1])
    if args.raw:
        tokens = [bleu.tokens_of(lines, args.lang, sacre) for lines in sides]
    else:
        tokens = [bleu.plain_tokens(lines, args.lang) for lines in sides]
    score = bleu.compound_split_bleu(*tokens)
    if not args.raw:
        words = MosesDetokenizer(lang=args.lang)
        sides = [[words.detokenize(line.split()) for line in lines] for lines in sides]
    signed = sacre.corpus_score(sides[0], [sides[1]]).format(signature=str(sacre.get_signature()))
    put(f"{fairseq_format(score)}\n{signed}\n")


if __name__ == "__main__":
    sys.exit(main())
