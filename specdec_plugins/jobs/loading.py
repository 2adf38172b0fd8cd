"""Loading a translator, with a clock: no command is silent while it exports its models."""

from __future__ import annotations

from specdec_plugins.inference import Settings, Translator, load_translator
from specdec_plugins.jobs import progress

LOADING = "loading and compiling the models: about 10 s, some 30 the first time"


def load(settings: Settings, quiet: bool = False) -> Translator:
    """Load a translator as :func:`load_translator` does, and show how long it takes."""
    with progress(quiet, LOADING):
        return load_translator(settings)
