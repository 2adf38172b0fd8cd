"""Speculative decoding for fairseq: a non-autoregressive drafter, an autoregressive verifier.

Importing the package registers its criterions, models and tasks with fairseq, tells torch which
types its checkpoints may hold, and fairseq that BPE codes are UTF-8; it does nothing else. Give its
folder as ``--user-dir`` to fairseq's commands, or import it as a library: both lead here.
"""

from __future__ import annotations

import importlib
import os
import pkgutil

from specdec_plugins.quiet import quiet_import

__version__ = "0.1.0"

with quiet_import():
    import fairseq

    from specdec_plugins.data.subword_codes import read_codes_as_utf8
    from specdec_plugins.safe_globals import register_safe_globals

    register_safe_globals()
    read_codes_as_utf8()

    # fairseq would find tasks and models itself under --user-dir, but not criterions, and nothing
    # at all after a plain import. What is imported here already, it will not run a second time.
    for _room in ("criterions", "models", "tasks"):
        for _module in pkgutil.iter_modules([f"{__path__[0]}/{_room}"]):
            importlib.import_module(f"{__name__}.{_room}.{_module.name}")

# The folder as fairseq spells it where it is found beside fairseq's own. Given --user-dir after
# this import, fairseq would take that for another package of the same name.
__path__.append(os.path.join(os.path.dirname(fairseq.__file__), "..", __name__))
