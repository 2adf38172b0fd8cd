"""Controllers: how much to draft, and how much of a draft to verify. No fairseq in here.

Each is a class whose fields are its options. A module in this folder registers its own, whose
options become flags.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
