"""Importing fairseq without what it does to a program's logging, and says, while it is imported."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_import() -> Iterator[None]:
    """Keep modules that are imported within it from setting up the root logger, and from showing
    warnings.

    Several of fairseq's set it to DEBUG or INFO and then tell of packages that nobody needs. Python
    leaves a root logger alone that has a handler.
    """
    root, handler = logging.getLogger(), logging.NullHandler()
    root.addHandler(handler)
    try:
        with warnings.catch_warnings():
            if not sys.warnoptions:
                warnings.simplefilter("ignore")
            yield
    finally:
        root.removeHandler(handler)
