#!/usr/bin/env python3
"""``specdec-average-checkpoints`` of a clone: see ``specdec_plugins/cli``."""

from door import open_door

if __name__ == "__main__":
    open_door("average_checkpoints")
