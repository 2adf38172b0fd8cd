#!/usr/bin/env python3
"""``specdec-check`` of a clone: see ``specdec_plugins/cli/check.py``."""

from door import open_door

if __name__ == "__main__":
    open_door("check")
