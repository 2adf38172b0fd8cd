"""Options, each declared once: by the policy or the rule that it belongs to. No fairseq in here.

Flags, the task's configuration, checks, head files and reports are made from these declarations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Generic, TypeVar

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
    remedy: str = ""
    """What to do instead of a value that is too small."""

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


def option(
    default: Any,
    help: str,
    minimum: float = -math.inf,
    maximum: float = math.inf,
    choices: tuple[str, ...] = (),
) -> Any:
    """Declare a field of a dataclass that is an option: its help, bounds and choices."""
    bounds = {"minimum": minimum, "maximum": maximum, "choices": choices}
    return field(default=default, metadata={"help": help, **bounds})


def option_fields(owner: type) -> dict[str, Field[Any]]:
    """Return the fields of a dataclass that are options, by name."""
    return {field.name: field for field in fields(owner) if "help" in field.metadata}


def check_options(options: Any) -> None:
    """
    Raises:
        ValueError: a value out of its bounds, by its flag.
    """
    for name, declared in option_fields(type(options)).items():
        value, bounds = getattr(options, name), declared.metadata
        minimum, maximum, choices = bounds["minimum"], bounds["maximum"], bounds["choices"]
        allowed = None
        if choices and value is not None and value not in choices:
            allowed = f"one of {', '.join(choices)}"
        elif isinstance(value, (int, float)) and not minimum <= value <= maximum:
            between = f"between {minimum:.10g} and {maximum:.10g}"
            allowed = f"at least {minimum:.10g}" if math.isinf(maximum) else between
        if allowed:
            raise ValueError(f"--{name.replace('_', '-')} {value}: must be {allowed}")


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
