"""Errors that a user reads as one line, which names the file or flag, the fault and the remedy."""

from __future__ import annotations


class SpecdecError(Exception):
    """Stop a command with one line on standard error, without a traceback."""


class InferenceError(SpecdecError, RuntimeError):
    """A file or stream of a run cannot be read or written, or does not fit the run."""


class ConversionError(InferenceError):
    """CTranslate2 cannot take a verifier."""


class CheckpointError(SpecdecError, RuntimeError):
    """A checkpoint cannot be read or written, or does not fit."""


class ConfigError(SpecdecError, ValueError):
    """A configuration, saved or on a command line, cannot be followed."""


class EngineError(SpecdecError, ValueError):
    """An engine cannot run here, or our steps not with a model."""


def counted(count: int, name: str) -> str:
    """Return a number of things: ``1 step``, ``2 steps``."""
    plural = "" if count == 1 else "s"
    return f"{count} {name}{plural}"
