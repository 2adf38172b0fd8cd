"""Show or remove what was compiled, converted and measured on this machine for later runs.

    specdec-cache            # where it lies, and how much it is
    specdec-cache --empty    # remove it all

It lies in ~/.cache/specdec, or below XDG_CACHE_HOME if that is set. At most 4 GiB of compiled files
are kept; those not used for longest are removed first. What is missing is made again when needed.
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
