#!/usr/bin/env python3
"""``specdec-encoder-initial`` of a clone: see ``specdec_plugins/cli/encoder_initial.py``."""

from door import open_door

if __name__ == "__main__":
    open_door("encoder_initial")
