"""Turn a trace into a page to look at.

    scripts/inference.py ... --trace run.jsonl
    scripts/trace_report.py run.jsonl run.html

The page is one file that fetches nothing and runs no script: every step of the sentences with its
accepted, rejected and bonus tokens, the histogram of acceptance length, the acceptance rate by
slot, and the totals.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from specdec_plugins.cli.terminal import prepare_terminal, program
from specdec_plugins.inference import InferenceError
from specdec_plugins.inference.paths import check_paths, check_writable
from specdec_plugins.inference.streams import tell
from specdec_plugins.inference.trace_file import read_trace
from specdec_plugins.inference.trace_report import build_report
from specdec_plugins.whole_file import whole_file

PROG = program("trace_report.py")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 1 for files that cannot be read or written."""
    prepare_terminal(PROG)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", metavar="TRACE", help="what inference.py --trace wrote")
    parser.add_argument("output", metavar="OUTPUT.html", help="the page to write")
    parser.add_argument(
        "--limit", metavar="N", type=int, default=1000, help="lines to show; all are counted (1000)"
    )
    args = parser.parse_args(argv)
    if args.limit < 0:
        parser.error(f"--limit {args.limit}: must be 0 or more")
    try:
        check_writable(args.output, "OUTPUT.html")
        check_paths([("OUTPUT.html", args.output)], [("TRACE", args.trace)])
        sentences = tqdm(read_trace(args.trace), unit="line", disable=None)
        page = build_report(sentences, args.limit, Path(args.trace).name)
        with whole_file(args.output) as file:
            file.write(page.encode("utf-8", errors="xmlcharrefreplace"))
    except InferenceError as error:
        tell(f"{PROG}: {error}")
        return 1
    except OSError as error:
        fault = f"cannot be written to ({error.strerror}); name another file"
        tell(f"{PROG}: OUTPUT.html {args.output}: {fault}")
        return 1
    except KeyboardInterrupt:
        tell(f"{PROG}: interrupted; nothing was written")
        return 130
    return 0
