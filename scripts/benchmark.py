#!/usr/bin/env python3
"""``specdec-benchmark`` of a clone: see ``specdec_plugins/cli/benchmark.py``."""

from door import open_door

if __name__ == "__main__":
    open_door("benchmark")
