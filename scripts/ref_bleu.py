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
no escaping), the second takes them as they are. Text of a language without blanks is cut by
sacreBLEU's tokenizer of --lang (zh; ja and ko with MeCab), or into characters.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
try:
    from sacrebleu.metrics.bleu import BLEUScore
    from sacremoses import MosesDetokenizer

    from specdec_plugins.evaluation import bleu
    from specdec_plugins.files.command import Parser
except ImportError as error:
    sys.exit(f"ref_bleu.py: {error}: pip install sacrebleu sacremoses")


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file, which must hold a word."""
    try:
        lines = path.read_bytes().decode().removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"ref_bleu.py: {path}: cannot be read ({error})")
    if not any(line.strip() for line in lines):
        sys.exit(f"ref_bleu.py: {path}: holds no words")
    return [line.removesuffix("\r") for line in lines]


def fairseq_format(score: BLEUScore) -> str:
    """Return a score as fairseq-score prints it."""
    precisions = "/".join(f"{precision:.1f}" for precision in score.precisions)
    ratio = score.sys_len / score.ref_len
    return (
        f"BLEU4 = {score.score:.2f}, {precisions} (BP={score.bp:.3f}, ratio={ratio:.3f}, "
        f"syslen={score.sys_len}, reflen={score.ref_len})"
    )


def main() -> None:
    """Print both figures."""
    parser = Parser(__doc__)
    parser.prog = "ref.sh"
    parser.add_argument("hyp", type=Path, metavar="HYP", help="translations, one a line")
    parser.add_argument("ref", type=Path, metavar="REF", help="references, line by line")
    parser.add_argument("--raw", action="store_true", help="HYP and REF are untokenised text")
    parser.add_argument("--lang", default="de", help="language of HYP and REF (de)")
    args = parser.parse_args()
    sides = [read_lines(args.hyp), read_lines(args.ref)]
    counts = [len(lines) for lines in sides]
    if counts[0] != counts[1]:
        sys.exit(f"ref_bleu.py: {args.hyp} has {counts[0]} lines and {args.ref} has {counts[1]}")
    tokenise = bleu.tokens_of if args.raw else bleu.plain_tokens
    score = bleu.compound_split_bleu(*(tokenise(lines, args.lang) for lines in sides))
    if not args.raw:
        words = MosesDetokenizer(lang=args.lang)
        sides = [[words.detokenize(line.split()) for line in lines] for lines in sides]
    sacre = bleu.metric_of(args.lang)
    signed = sacre.corpus_score(sides[0], [sides[1]]).format(signature=str(sacre.get_signature()))
    # In one piece, so that `ref.sh … | head -1` does not break the pipe.
    sys.stdout.write(f"{fairseq_format(score)}\n{signed}\n")


if __name__ == "__main__":
    main()
