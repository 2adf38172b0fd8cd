"""Records as JSON has them, and where two of them differ."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

JsonObject = dict[str, Any]
"""Settings, figures and the like by name, as JSON has them: nested, each of its own kind."""


def plain(value: object) -> object:
    """Return a value as JSON can have it, which knows no infinity, and no number that is none: they
    are text."""
    if is_dataclass(value):
        return plain(vars(value))
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value:g}"
    return value


def as_read(description: JsonObject) -> JsonObject:
    """Return a description as it is when read again: tuples are lists, keys are strings."""
    read: JsonObject = json.loads(json.dumps(description))
    return read


def differing(one: object, other: object) -> str:
    """Return the names at which two descriptions differ, as messages say it; empty if nowhere."""
    names = list(differences(one, other))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def differences(one: object, other: object, name: str = "") -> Iterator[str]:
    """The dotted names at which two descriptions differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys([*one, *other]):
            yield from differences(one.get(key), other.get(key), f"{name}.{key}" if name else key)
    elif one != other:
        yield name
