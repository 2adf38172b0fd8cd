"""The policies there are, each with all that has to be known of it, and their options."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from torch import Tensor

from specdec_plugins.decoding.controllers.base import Bounds, Controller
from specdec_plugins.decoding.options import Option, Value, by_name

T = TypeVar("T")

AUTO = "auto"
"""In place of a policy's name: what the manual recommends."""
RECOMMENDED, PUBLISHED = "tree", "constant"
"""What that is; of a drafter that is the published one's kind, what was published with it."""

MIN_DRAFT = Option(
    "min_draft", 0, "the fewest slots to draft and, of those, to verify; of a tree: nodes", int,
    least=0,
)  # fmt: skip
MAX_DRAFT = Option[int | None](
    "max_draft", None,
    "the most slots to draft, or how deep a tree; by default the block size", int, optional=True,
    least=1, remedy="; to draft nothing give --controller none",
)  # fmt: skip
TREE_NODES = Option(
    "tree_nodes", 8, "tree: how many tokens of a tree to verify; cost-aware: at most", int,
    least=1, most=1024, sweep=(8, 12, 16, 20, 24), axis="nodes",
)  # fmt: skip
MAX_ROWS = Option[int | None](
    "max_rows", None,
    "tree: larger batches are decoded without drafts (default: no batch is too large; auto sets it "
    "where drafts cost time, but not for relaxed output, which would depend on it)",
    int, optional=True, least=1,
)  # fmt: skip
ACCEPTANCE_HEAD = Option[str | None](
    "acceptance_head", None,
    "acceptance-head: file of the head (inference.py finds the acceptance_head.pt, or for relaxed "
    "acceptance or sampling acceptance_head.relaxed.pt or .sampling.pt, that lies beside the "
    "drafter)",
    str, optional=True,
)  # fmt: skip
COST_PROFILE = Option[str | None](
    "cost_profile", None,
    "cost-aware, and acceptance-head with --auto-stop-threshold: file of what steps cost here; "
    "measured and written if it is not there (default: one in ~/.cache/specdec)",
    str, optional=True,
)  # fmt: skip
BOUNDS = (MIN_DRAFT, MAX_DRAFT)
"""Of all policies that draft."""


class Head(Protocol):
    """An acceptance head: how likely drafted tokens are to be accepted."""

    def __call__(self, states: Tensor, confidences: Tensor) -> Tensor:
        """``(rows, slots)`` probabilities that a slot is accepted given that all before it are.

        Args:
            states: ``(rows, slots, channels)`` the drafter's states.
            confidences: ``(rows, slots)`` the drafter's probability of each drafted token.
        """
        ...


@dataclass(frozen=True)
class Parts:
    """What a controller is built from, beside its options."""

    bounds: Bounds
    """Of slots, or of nodes where drafts are trees."""
    depth: int
    """How deep trees may be."""
    head: Head | None = None


@dataclass(frozen=True)
class Style:
    """How a kind of system is drawn."""

    color: str
    """Those of Okabe and Ito (2008) can be told apart by the colour-blind."""
    marker: str
    size: int = 6


@dataclass(frozen=True)
class Policy:
    """A policy: how it is named, set, checked, built, reported and drawn.

    Functions are given the :class:`ControllerOptions`.
    """

    name: str
    help: str
    build: Callable[[ControllerOptions, Parts], Controller]
    options: tuple[Option[Any], ...] = ()
    """Those that it looks at, beside the bounds."""
    styles: Mapping[str, Style] = field(default_factory=dict)
    """By its name, or the names of the kinds of system that a sweep makes of it."""
    trees: Callable[[ControllerOptions], bool] = lambda options: False
    """Whether drafts branch."""
    needs_head: bool = False
    """Whether it asks an acceptance head."""
    looks_around: Callable[[ControllerOptions], bool] = lambda options: False
    """Whether it decides for a row by other rows, those before it or timings too: relaxed output
    then depends on them, also in float64."""
    prepares: Callable[[ControllerOptions], str] = lambda options: ""
    """What is to be done before each batch, and told to the controller: ``costs`` are measured, or
    the batch is decoded (``lookahead``)."""
    variants: Callable[[ControllerOptions], Iterator[tuple[str, ControllerOptions]]] | None = None
    """What a sweep makes of it, each with what its name has beside the policy's; None: one for each
    value of the option that is swept."""
    bounded: bool = True
    """Whether it has bounds at all."""
    rank: int = 50
    """Its place in lists."""
    real: bool = True
    """False of what knows more than a decoder can."""
    idle: Callable[[ControllerOptions], set[str]] = lambda options: set()
    """Of its options, those that do nothing beside the others."""


POLICIES: dict[str, Policy] = {}
"""By name."""


def register_policy(policy: Policy) -> Policy:
    """Make a policy known: to flags, configurations, sweeps, tables and plots.

    Raises:
        ValueError: there is one of that name.
    """
    if policy.name in POLICIES:
        raise ValueError(f"policy {policy.name}: is registered twice")
    POLICIES[policy.name] = policy
    return policy


def load_policies() -> None:
    """Import all modules of this folder, which register what is in them."""
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        importlib.import_module(f"{package}.{module.name}")
    ordered = sorted(POLICIES.values(), key=lambda policy: policy.rank)
    POLICIES.clear()
    POLICIES.update((policy.name, policy) for policy in ordered)


def controller_options() -> dict[str, Option[Any]]:
    """The options of all policies, by name."""
    others = (option for policy in POLICIES.values() for option in policy.options)
    return by_name([*BOUNDS, *others])


@dataclass(frozen=True, init=False)
class ControllerOptions:
    """Which policy, with which settings: checked when made."""

    controller: str
    """The policy's name; or ``auto``, which :meth:`resolved` replaces, and which is as what is
    recommended until then."""
    given: Mapping[str, Value] = field(default_factory=dict)
    """Values by name; others have their defaults."""

    def __init__(self, controller: str = "constant", **given: Value) -> None:
        """
        Raises:
            ValueError: a policy or value that cannot be, by its flag; a name that is no option's.
        """
        if controller not in (AUTO, *POLICIES):
            names = ", ".join((AUTO, *POLICIES))
            raise ValueError(f"--controller {controller}: must be one of {names}")
        options = controller_options()
        for name in given:
            if name not in options:
                raise ValueError(f"{name}: is none of the options, {', '.join(options)}")
        values = {name: options[name].check(value) for name, value in given.items()}
        kept = {n: v for n, v in values.items() if v != options[n].default}
        object.__setattr__(self, "controller", controller)
        object.__setattr__(self, "given", kept)
        self._check_bounds()

    def _check_bounds(self) -> None:
        least, most = self[MIN_DRAFT], self[MAX_DRAFT]
        limit = TREE_NODES if self.trees else MAX_DRAFT
        most = self[TREE_NODES] if self.trees else most
        if least and not self.policy.bounded:
            raise ValueError(f"--min-draft {least}: --controller {self.controller} drafts nothing")
        if most is not None and least > most:
            raise ValueError(f"--min-draft {least}: is above {limit.flag} {most}")

    def __hash__(self) -> int:
        return hash((self.controller, tuple(sorted(self.given.items()))))

    def __getitem__(self, option: Option[T]) -> T:
        """The value of an option."""
        found: T = self._value(option)
        return found

    def _value(self, option: Option[Any]) -> Any:
        return self.given.get(option.name, option.default)

    def having(self, controller: str | None = None, **given: Value) -> ControllerOptions:
        """The same with another policy, or with some other values."""
        return ControllerOptions(controller or self.controller, **{**self.given, **given})

    def resolved(self, causal: bool, max_rows: int | None = None) -> ControllerOptions:
        """The same, with a policy in place of ``auto``.

        The recommended one; but with a drafter of the published kind, which is not ``causal``,
        whole blocks, as published: with relaxed acceptance what is drafted changes the output.
        Whoever wants other trees than those by default has them with any drafter.

        Args:
            max_rows: how large batches may be for drafts to pay; None: any size.
        """
        if self.controller != AUTO:
            return self
        trees = {option.name for option in POLICIES[RECOMMENDED].options} - {MAX_ROWS.name}
        if not causal and not trees & self.given.keys():
            return self.having(PUBLISHED)
        return self.having(RECOMMENDED, **{MAX_ROWS.name: max_rows, **self.given})

    @classmethod
    def from_config(cls, config: Any) -> ControllerOptions:
        """From a task's config or a command line, which have the options' names.

        Raises:
            ValueError: a value that cannot be, by its flag.
        """
        given = {name: getattr(config, name) for name in controller_options()}
        # fairseq's choices are enumerations.
        plain = {n: v if v is None or type(v) in (bool, int, float) else str(v)
                 for n, v in given.items()}  # fmt: skip
        return cls(str(config.controller), **plain)

    @property
    def policy(self) -> Policy:
        """The policy."""
        return POLICIES[RECOMMENDED if self.controller == AUTO else self.controller]

    @property
    def trees(self) -> bool:
        """Whether drafts branch."""
        return self.policy.trees(self)

    @property
    def drafts(self) -> bool:
        """Whether a drafter is needed at all."""
        return self.policy.bounded

    @property
    def looks_around(self) -> bool:
        return self.policy.looks_around(self)

    @property
    def prepares(self) -> str:
        return self.policy.prepares(self)

    @property
    def needs_head(self) -> bool:
        """Whether it asks an acceptance head."""
        return self.policy.needs_head

    @property
    def kind(self) -> str:
        """The kind of system it is, which has a curve of its own in plots."""
        return self.controller

    @property
    def used(self) -> tuple[Option[Any], ...]:
        """The options that it looks at."""
        own = (*(BOUNDS if self.policy.bounded else ()), *self.policy.options)
        idle = self.policy.idle(self)
        return tuple(option for option in own if option.name not in idle and not option.gone)

    @property
    def idle(self) -> set[str]:
        """The names of the options that it does not look at."""
        return set(controller_options()) - {option.name for option in self.used}

    def swept(self, axis: str) -> Any:
        """The value of its option that plots have on this axis; None if it has none."""
        return next((self._value(option) for option in self.used if option.axis == axis), None)

    def describe(self) -> dict[str, Value]:
        """All that it depends on: its name as ``controller``, and its options' values."""
        return {"controller": self.controller, **{o.name: self._value(o) for o in self.used}}

    def check_block_size(self, block_size: int) -> None:
        """
        Raises:
            ValueError: a bound is above the block size, naming its flag.
        """
        slots = (MAX_DRAFT,) if self.trees else (MAX_DRAFT, MIN_DRAFT)
        for option in slots:
            value = self._value(option)
            if value is not None and value > block_size:
                raise ValueError(f"{option.flag} {value}: is above the block size, {block_size}")

    def build(self, block_size: int, head: Head | None = None) -> Controller:
        """The controller for blocks of ``block_size``.

        Args:
            head: an acceptance head, for those that ask one.

        Raises:
            ValueError: bounds outside the block, or no head where one is needed.
        """
        self.check_block_size(block_size)
        slots = self[MAX_DRAFT] or block_size
        bounds = Bounds(self[MIN_DRAFT], self[TREE_NODES] if self.trees else slots)
        if self.needs_head and head is None:
            raise ValueError(
                f"--controller {self.controller}: there is no acceptance head beside the drafter; "
                "give its file with --acceptance-head"
            )
        return self.policy.build(self, Parts(bounds, slots, head))
