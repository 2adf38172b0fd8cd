"""Import fairseq without its side effects."""

from __future__ import annotations

import gc
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

#: Imported by two of fairseq's modules to classify sentences and sounds: a second and 140 MiB.
LIBRARIES = "sklearn", "sklearn.metrics", "scipy.stats"


class _Deferred(ModuleType):
    """Stand for a module; its functions import it when they are called."""

    def __getattr__(self, name: str) -> Callable[..., object]:
        if name.startswith("__"):
            raise AttributeError(name)

        def function(*args: object, **options: object) -> object:
            return getattr(import_module(self.__name__), name)(*args, **options)

        return function


@contextmanager
def importing_fairseq() -> Iterator[None]:
    """Defer imports of :data:`LIBRARIES` within the block until something of them is called, and
    keep modules that are imported in it from showing warnings and setting up the root logger.
    Nothing looks for garbage meanwhile, which would take a tenth of the time.

    A library that is loaded already stays as it is; whoever imports one later has the real one.
    """
    # Python leaves a root logger alone that has a handler.
    root = logging.getLogger()
    handler = logging.NullHandler()
    root.addHandler(handler)
    missing = [name for name in LIBRARIES if name not in sys.modules]
    modules = {name: _Deferred(name) for name in missing}
    for name, module in modules.items():
        parent, _, child = name.rpartition(".")
        if parent in modules:
            setattr(modules[parent], child, module)
    sys.modules.update(modules)
    collects = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            if not sys.warnoptions:
                warnings.simplefilter("ignore")
            yield
    finally:
        if collects:
            gc.enable()
        root.removeHandler(handler)
        for name in missing:
            del sys.modules[name]
