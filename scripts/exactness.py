#!/usr/bin/env python3
"""``specdec-exactness`` of a clone: see ``specdec_plugins/cli/exactness.py``."""

from door import open_door

if __name__ == "__main__":
    open_door("exactness")
