"""What was compiled, converted and measured on this machine, and is kept for later runs.

    scripts/cache.py            # where it lies, and how much it is
    scripts/cache.py --empty    # remove it all

It lies in ~/.cache/specdec, or below XDG_CACHE_HOME if that is set. Of what was compiled at most
4 GiB are kept: what was not used for longest is removed first. What is missing is made again when
it is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

from specdec_plugins.files.cache import empty, size
from specdec_plugins.files.help import Parser
from specdec_plugins.files.streams import put
from specdec_plugins.files.terminal import command, program
from specdec_plugins.machine import cache_folder

PROG = program("cache.py")


@command(PROG)
def main(argv: Sequence[str]) -> None:
    parser = Parser(PROG, __doc__)
    parser.add_argument("--empty", action="store_true", help="remove all that is kept")
    args = parser.parse_args(argv)
    folder = cache_folder()
    held = size(folder) / 2**20
    if args.empty:
        empty(folder)
    put(f"{folder}: {held:.0f} MiB{' removed' if args.empty else ''}\n")
