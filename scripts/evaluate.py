#!/usr/bin/env python3
"""``specdec-evaluate`` of a clone: see ``specdec_plugins/cli/evaluate.py``."""

from door import open_door

if __name__ == "__main__":
    open_door("evaluate")
