#!/usr/bin/env python3
"""``specdec-export`` of a clone: see ``specdec_plugins/cli/export_checkpoint.py``."""

from door import open_door

if __name__ == "__main__":
    open_door("export_checkpoint")
