"""Importing OpenVINO and what belongs to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from specdec_plugins.files.errors import EngineError

TELEMETRY = "openvino_telemetry"


def has_openvino() -> bool:
    """Return whether OpenVINO can be imported."""
    return find_spec("openvino") is not None


@contextmanager
def without_telemetry() -> Iterator[None]:
    """What is imported in here finds nothing by which it would send its use anywhere, which
    OpenVINO and NNCF do unless they are told not to. A translation sends nothing."""
    before = sys.modules.get(TELEMETRY)
    sys.modules[TELEMETRY] = None  # type: ignore[assignment]  # Python's own way to hide a module
    try:
        yield
    finally:
        del sys.modules[TELEMETRY]
        if before is not None:
            sys.modules[TELEMETRY] = before


def installed_openvino() -> Any:
    """Return the module.

    Raises:
        EngineError: it is not installed, or cannot be imported.
    """
    try:
        with without_telemetry():
            import openvino
    except ImportError as error:
        raise EngineError(
            f"--engine openvino: OpenVINO cannot be imported ({error}); pip install "
            "'specdec-plugins[openvino]', or use --engine eager"
        ) from error
    return openvino
