"""Speculative decoding for fairseq: a non-autoregressive drafter, an autoregressive verifier.

Give this folder as ``--user-dir`` to fairseq's commands, or import it. What needs no fairseq
(acceptance, drafts, controllers) can be used without it.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys

from specdec_plugins.files.command import end_on_interrupt

__version__ = "0.3.0"

# ONNX Runtime's official builds report to their maker from the moment they are imported, which is
# always after this. Child processes inherit it.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

end_on_interrupt()


def register() -> None:
    """Register criterions, models, tasks and repairs with fairseq; a second call does nothing."""
    from specdec_plugins.host.fairseq_import import importing_fairseq

    with importing_fairseq():
        import fairseq

        from specdec_plugins.checkpoints.archive import register_safe_globals

        register_safe_globals()
        # fairseq itself finds no criterions. What is imported here, it does not run again.
        for room in ("criterions", "models", "tasks"):
            for module in pkgutil.iter_modules([f"{__path__[0]}/{room}"]):
                importlib.import_module(f"{__name__}.{room}.{module.name}")
    # The folder as fairseq spells it where it is found beside fairseq's own. Given --user-dir after
    # this import, fairseq would take that for another package of the same name.
    beside = os.path.join(os.path.dirname(fairseq.__file__), "..", __name__)
    if beside not in __path__:
        __path__.append(beside)


if "fairseq" in sys.modules:  # as fairseq's commands import it before this
    register()
