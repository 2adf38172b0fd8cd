#!/usr/bin/env python3
"""``specdec-calibrate-head`` of a clone: see ``specdec_plugins/cli/calibrate_head.py``."""

from door import open_door

if __name__ == "__main__":
    open_door("calibrate_head")
