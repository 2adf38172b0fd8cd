#!/usr/bin/env python3
"""``specdec-train`` of a clone: see ``specdec_plugins/cli/train.py``."""

from door import open_door

if __name__ == "__main__":
    open_door("train")
