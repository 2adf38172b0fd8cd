#!/usr/bin/env python3
"""``fairseq-train`` under the name that the published project's commands use."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from specdec_plugins.cli.train import main

if __name__ == "__main__":
    main()
