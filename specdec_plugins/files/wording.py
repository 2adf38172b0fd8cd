"""How messages and tables say things."""

from __future__ import annotations


def counted(count: int, name: str) -> str:
    """Return a number of things: ``1 step``, ``2 steps``."""
    return f"{count} {name}{'s' * (count != 1)}"
