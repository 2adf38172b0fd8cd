#!/usr/bin/env python3
"""``specdec-recombine`` of a clone: see ``specdec_plugins/cli/recombine.py``."""

from door import open_door

if __name__ == "__main__":
    open_door("recombine")
