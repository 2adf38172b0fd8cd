"""Importing fairseq without libraries that only tasks and criterions of others need."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

LIBRARIES = "sklearn", "sklearn.metrics", "scipy.stats"
"""What two of fairseq's modules import to classify sentences and sounds: a second and 140 MiB."""


class _Deferred(ModuleType):
    """Stands for a module; what is taken from it imports the module when it is called."""

    def __getattr__(self, name: str) -> Callable[..., object]:
        if name.startswith("__"):
            raise AttributeError(name)

        def function(*args: object, **options: object) -> object:
            return getattr(import_module(self.__name__), name)(*args, **options)

        return function


@contextmanager
def deferred_imports() -> Iterator[None]:
    """Defer, within it, what is imported from :data:`LIBRARIES`: it is not loaded before it is
    called.

    What is loaded already stays as it is; whoever imports one of them later has the real one.
    """
    missing = [name for name in LIBRARIES if name not in sys.modules]
    modules = {name: _Deferred(name) for name in missing}
    for name, module in modules.items():
        parent, _, child = name.rpartition(".")
        if parent in modules:
            setattr(modules[parent], child, module)
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]
