#!/usr/bin/env python3
"""``specdec-make-pair`` of a clone: see ``specdec_plugins/cli/make_pair.py``."""

from door import open_door

if __name__ == "__main__":
    open_door("make_pair")
