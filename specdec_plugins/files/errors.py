"""The errors that a user is told of in one line, which names the file or flag, the fault and the
remedy."""

from __future__ import annotations


class SpecdecError(Exception):
    """Stops a command by one line on standard error, without a traceback."""


class InferenceError(SpecdecError, RuntimeError):
    """A file or stream of a run cannot be read or written, or does not fit the run."""


class ConversionError(InferenceError):
    """CTranslate2 cannot take a verifier."""


class CheckpointError(SpecdecError, RuntimeError):
    """A checkpoint cannot be read or written, or does not fit."""


class ConfigError(SpecdecError, ValueError):
    """A saved configuration is not one that a model can be built of."""


class UnsupportedModelError(SpecdecError, ValueError):
    """A verifier that our steps cannot decode with."""


class EngineError(SpecdecError, ValueError):
    """An engine cannot run here, or cannot run what it is asked to."""


class RecipeError(SpecdecError, ValueError):
    """A recipe of a training cannot be read, or says something that it must not."""


class UsageError(SpecdecError, ValueError):
    """A command line that cannot be followed."""
