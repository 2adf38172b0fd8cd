#!/usr/bin/env python3
"""``specdec-tune`` of a clone: see ``specdec_plugins/cli/tune.py``."""

from door import open_door

if __name__ == "__main__":
    open_door("tune")
