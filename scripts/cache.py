#!/usr/bin/env python3
"""``specdec-cache`` of a clone: see ``specdec_plugins/cli/cache.py``."""

from door import open_door

if __name__ == "__main__":
    open_door("cache")
