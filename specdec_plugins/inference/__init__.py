"""Lines of text in, lines of text out: loading a pair, batching, output that can be resumed."""

from __future__ import annotations

from specdec_plugins import register

register()

from specdec_plugins.files.errors import InferenceError  # noqa: E402
from specdec_plugins.inference.loading import load_translator  # noqa: E402
from specdec_plugins.inference.settings import Settings  # noqa: E402
from specdec_plugins.inference.translator import Translation, Translator  # noqa: E402
from specdec_plugins.inference.tuned_modes import as_tuned  # noqa: E402

__all__ = ["InferenceError", "Settings", "Translation", "Translator", "as_tuned", "load_translator"]
