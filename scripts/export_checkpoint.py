#!/usr/bin/env python3
"""Write a checkpoint for shipping: float16 weights, no optimizer state, no paths.

    scripts/export_checkpoint.py SOURCE.pt TARGET.pt
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import specdec_plugins  # noqa: E402, F401
from specdec_plugins.checkpoints import CheckpointError  # noqa: E402
from specdec_plugins.export import export_checkpoint  # noqa: E402


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        size = export_checkpoint(sys.argv[1], sys.argv[2])
    except CheckpointError as error:
        print(f"export_checkpoint.py: {error}", file=sys.stderr)
        return 1
    print(f"{sys.argv[2]}: {size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
