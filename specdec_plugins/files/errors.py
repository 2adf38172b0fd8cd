"""The errors that a user is told of in one line, which names the file or flag, the fault and the
remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


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


@contextmanager
def explained(
    fault: str, remedy: str = "", kind: type[SpecdecError] = InferenceError
) -> Iterator[None]:
    """Tell what the system refuses within the block in one line: the fault, the system's reason and
    the remedy.

    Raises:
        SpecdecError: of that ``kind``.
        BrokenPipeError: nobody reads what is written any more, which is nobody's fault.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        rest = f"; {remedy}" if remedy else ""
        raise kind(f"{fault} ({error.strerror or error}){rest}") from error
