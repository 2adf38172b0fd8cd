"""Turn a trace into a web page.

    specdec-translate ... --trace run.jsonl
    specdec-trace-report run.jsonl run.html

The page is one file that fetches nothing and runs no script. It shows every step, a histogram of
acceptance lengths, and the totals.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specdec_plugins.files.command import Parser, command
from specdec_plugins.files.output import reserved, write_whole
from specdec_plugins.inference.trace_page import build_page, read_trace


@command("interrupted; nothing was written")
def main(argv: Sequence[str]) -> None:
    """Write the page."""
    parser = Parser(__doc__)
    parser.add_argument("trace", metavar="TRACE", help="a file that --trace wrote")
    parser.add_argument("output", metavar="OUTPUT", help="the page to write")
    parser.add_argument("--limit", metavar="N", type=int, default=1000, help="lines to show (1000)")
    args = parser.parse_args(argv)
    with reserved([("OUTPUT", args.output)], [("TRACE", args.trace)]):
        page = build_page(read_trace(args.trace), args.limit, Path(args.trace).name)
        write_whole(Path(args.output), [page.encode("utf-8", errors="xmlcharrefreplace")])
