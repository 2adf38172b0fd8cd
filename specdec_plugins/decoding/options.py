"""Options, each declared once: by the policy or the rule that it belongs to. No fairseq in here.

Flags, the task's configuration, checks, head files and reports are made from these declarations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from types import NoneType
from typing import Any, Generic, TypeVar, get_args, get_type_hints

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Value = bool | int | float | str | None
Values = Mapping[str, Any]
"""Values of options by name, each of its option's type."""


@dataclass(frozen=True)
class Option(Generic[T_co]):
    """One option: what a flag, a configuration's field and a check need to know."""

    name: str
    """The name of the configuration's field; the flag is made from it."""
    default: T_co
    help: str
    kind: Callable[[str], bool | int | float | str] = float
    """``bool`` is a flag without a value."""
    optional: bool = False
    """Whether None is a value, too."""
    choices: tuple[str, ...] = ()
    least: float = -math.inf
    most: float = math.inf
    """The largest value; what is no number is refused by ``least``."""
    sweep: tuple[T_co, ...] = ()
    """What a sweep compares if nothing is said; options that have this are swept."""
    axis: str = ""
    """The axis that a plot has for the values of a swept option: ``threshold`` (0 to 1) or
    ``nodes``."""
    remedy: str = ""
    """What to do instead of a value that is too small."""
    gone: str = ""
    """The reason why an option was taken away, and what to use instead. For one version every value
    of it is refused by this."""

    @property
    def flag(self) -> str:
        """The flag, such as ``--tree-nodes``."""
        return f"--{self.name.replace('_', '-')}"

    def check(self, value: object) -> T_co:
        """Return the value.

        Raises:
            ValueError: it cannot be, by its flag.
        """
        if value is None and self.optional:
            return self.default
        if self.gone:
            raise ValueError(f"{self.flag}: was taken away; {self.gone}")
        if self.choices and str(value) not in self.choices:
            raise ValueError(f"{self.flag} {value}: must be one of {', '.join(self.choices)}")
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if number and not self.least <= value <= self.most:  # type: ignore[operator]
            # Ten digits: the largest of any count is told whole.
            allowed = f"between {self.least:.10g} and {self.most:.10g}"
            if math.isinf(self.most):
                whole = "at least {:g}" if self.kind is int and self.least else "{:g} or more"
                allowed = whole.format(self.least)
            elif math.isinf(self.least):
                allowed = f"at most {self.most:g}"
            raise ValueError(f"{self.flag} {value}: must be {allowed}{self.remedy}")
        return value  # type: ignore[return-value]


def option(default: T, help: str, **about: object) -> T:
    """Return a field of a dataclass of options, as fairseq writes them: its help is in the
    metadata.

    Args:
        about: other members of an :class:`Option`; name, kind and whether None is a value, too, are
            those of the field.
    """
    declared: T = field(default=default, metadata={"help": help, **about})
    return declared


def declared_options(owner: type) -> tuple[Option[Any], ...]:
    """Return the options that a dataclass declares."""
    return _declared(owner)


@cache
def _declared(owner: type) -> tuple[Option[Any], ...]:
    hints, found = get_type_hints(owner), []
    for one in fields(owner):
        kinds = get_args(hints[one.name]) or (hints[one.name],)
        kind = next(kind for kind in kinds if kind is not NoneType)
        optional = NoneType in kinds
        found.append(Option(one.name, one.default, kind=kind, optional=optional, **one.metadata))
    return tuple(found)


def by_name(options: Iterable[Option[T_co]]) -> dict[str, Option[T_co]]:
    """Options of several owners, each once.

    Raises:
        ValueError: two different ones have the same name.
    """
    found: dict[str, Option[T_co]] = {}
    for option in options:
        if found.setdefault(option.name, option) != option:
            raise ValueError(f"{option.flag}: is declared twice")
    return found


def flags(values: Mapping[str, Value]) -> str:
    """Return the flags that give these values, such as ``--beta 3 --tau 1.0``."""
    parts = []
    for name, value in values.items():
        flag = f"--{name.replace('_', '-')}"
        parts.append(flag if value is True else f"{flag} {value}")
    return " ".join(parts)
