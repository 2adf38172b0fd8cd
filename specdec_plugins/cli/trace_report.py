"""Turn a trace into a page to look at, or one sentence of it into a picture.

    scripts/inference.py ... --trace run.jsonl
    specdec-trace-report run.jsonl run.html
    specdec-trace-report run.jsonl run.svg --line 3

The page is one file that fetches nothing and runs no script: every step of the sentences with its
accepted, rejected and bonus tokens, the histogram of acceptance length, the acceptance rate by
slot, and the totals. The picture shows the steps of one line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tqdm import tqdm

from specdec_plugins.files.command import Parser, command, program
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.lock import reserved
from specdec_plugins.files.output import write_whole
from specdec_plugins.inference.trace_file import SentenceTrace, read_trace
from specdec_plugins.inference.trace_picture import draw_sentence
from specdec_plugins.inference.trace_report import build_report

PROG = program("trace_report.py")


@command(PROG, "interrupted; nothing was written")
def main(argv: Sequence[str]) -> None:
    parser = Parser(PROG, __doc__)
    parser.add_argument("trace", metavar="TRACE", help="what inference.py --trace wrote")
    parser.add_argument(
        "output", metavar="OUTPUT", help="the page to write, or OUTPUT.svg, the picture"
    )
    parser.add_argument(
        "--limit", metavar="N", type=int, default=1000, help="lines to show; all are counted (1000)"
    )
    parser.add_argument(
        "--line", metavar="N", type=int, default=1, help="of a picture: the line to draw (1)"
    )
    args = parser.parse_args(argv)
    if args.limit < 0:
        parser.error(f"--limit {args.limit}: must be 0 or more")
    if args.line < 1:
        parser.error(f"--line {args.line}: must be 1 or more")
    kind = Path(args.output).suffix.lower()
    if kind not in ("", ".html", ".htm", ".svg"):
        raise InferenceError(f"OUTPUT {args.output}: name it .html, the page, or .svg, the picture")
    with reserved([("OUTPUT", args.output)], [("TRACE", args.trace)]):
        sentences = tqdm(read_trace(args.trace), unit="line", disable=None)
        if kind == ".svg":
            made = _picture(sentences, args.line)
        else:
            made = build_report(sentences, args.limit, Path(args.trace).name)
        write_whole(Path(args.output), [made.encode("utf-8", errors="xmlcharrefreplace")])


def _picture(sentences: Iterable[SentenceTrace], line: int) -> str:
    """
    Raises:
        InferenceError: there is no such line, or nothing in it.
    """
    for number, sentence in enumerate(sentences, start=1):
        if number == line:
            try:
                return draw_sentence(sentence)
            except ValueError as error:
                raise InferenceError(f"--line {line}: {error}; name another") from error
    raise InferenceError(f"--line {line}: there are only {number} lines")
