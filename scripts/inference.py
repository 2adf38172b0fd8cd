#!/usr/bin/env python3
"""``specdec-translate`` of a clone: see ``specdec_plugins/cli/inference.py``."""

from door import open_door

if __name__ == "__main__":
    open_door("inference")
