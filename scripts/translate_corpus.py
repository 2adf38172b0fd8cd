#!/usr/bin/env python3
"""``specdec-translate-corpus`` of a clone: see ``specdec_plugins/cli/translate_corpus.py``."""

from door import open_door

if __name__ == "__main__":
    open_door("translate_corpus")
