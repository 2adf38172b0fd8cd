"""Kinds of draft: the values of ``--drafts``.

Each is a class. A module in this folder registers its own.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
