"""The policies there are, and the settings that choose one."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_plugins.decoding.controllers.base import Bounds, Controller
from specdec_plugins.decoding.controllers.policy import (
    POLICIES,
    DraftingPolicy,
    Head,
    Parts,
    Policy,
)
from specdec_plugins.decoding.options import Option, Value, by_name, declared_options

if TYPE_CHECKING:
    from argparse import Namespace

    from fairseq.dataclass import FairseqDataclass

AUTO = "auto"
"""The name that stands for the policy that the manual recommends."""
GONE = {"cost-aware": "specdec-tune measures the ways here, and auto takes the fastest"}
"""Policies that were taken away, and what does for them; for one version refused by this."""
RECOMMENDED, PUBLISHED = "tree", "constant"
"""What that is; of a drafter that is the published one's kind, what was published with it."""


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
    return by_name(one for policy in POLICIES.values() for one in declared_options(policy))


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
        if controller in GONE:
            raise ValueError(f"--controller {controller}: was taken away; {GONE[controller]}")
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
        least, name = self["min_draft"], "tree_nodes" if self.trees else "max_draft"
        most = self[name]
        if least and not self.drafts:
            raise ValueError(f"--min-draft {least}: --controller {self.controller} drafts nothing")
        if most is not None and least > most:
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(f"--min-draft {least}: is above {flag} {most}")

    def __hash__(self) -> int:
        return hash((self.controller, tuple(sorted(self.given.items()))))

    def __getitem__(self, name: str) -> Any:
        """The value of an option, of whichever policy it is."""
        return self.given[name] if name in self.given else controller_options()[name].default

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
        trees = {one.name for one in declared_options(POLICIES[RECOMMENDED])}
        trees -= {one.name for one in declared_options(DraftingPolicy)} | {"max_rows"}
        if not causal and not trees & self.given.keys():
            return self.having(PUBLISHED)
        return self.having(RECOMMENDED, **{"max_rows": max_rows, **self.given})

    @classmethod
    def from_config(cls, config: FairseqDataclass | Namespace) -> ControllerOptions:
        """Read a task's config or a command line, which have the options' names.

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
        """The policy, with its options."""
        policy = POLICIES[RECOMMENDED if self.controller == AUTO else self.controller]
        names = {one.name for one in declared_options(policy)}
        return policy(**{name: value for name, value in self.given.items() if name in names})

    @property
    def trees(self) -> bool:
        """Whether drafts branch."""
        return self.policy.trees

    @property
    def drafts(self) -> bool:
        """Whether a drafter is needed at all."""
        return self.policy.drafts

    @property
    def needs_head(self) -> bool:
        """Whether it asks an acceptance head."""
        return self.policy.asks_head

    @property
    def used(self) -> tuple[Option[Any], ...]:
        """The options that it looks at."""
        policy = self.policy
        declared = declared_options(type(policy))
        return tuple(one for one in declared if one.name not in policy.idle and not one.gone)

    @property
    def idle(self) -> set[str]:
        """The names of the options that it does not look at."""
        return set(controller_options()) - {option.name for option in self.used}

    def swept(self, axis: str) -> Any:
        """The value of its option that plots have on this axis; None if it has none."""
        return next((self[one.name] for one in self.used if one.axis == axis), None)

    def describe(self) -> dict[str, Value]:
        """All that it depends on: its name as ``controller``, and its options' values."""
        return {"controller": self.controller, **{one.name: self[one.name] for one in self.used}}

    def check_block_size(self, block_size: int) -> None:
        """
        Raises:
            ValueError: a bound is above the block size, naming its flag.
        """
        for name in ("max_draft",) if self.trees else ("max_draft", "min_draft"):
            value = self[name]
            if value is not None and value > block_size:
                flag = f"--{name.replace('_', '-')}"
                raise ValueError(f"{flag} {value}: is above the block size, {block_size}")

    def build(self, block_size: int, head: Head | None = None) -> Controller:
        """The controller for blocks of ``block_size``.

        Args:
            head: an acceptance head, for those that ask one.

        Raises:
            ValueError: bounds outside the block, or no head where one is needed.
        """
        self.check_block_size(block_size)
        slots = self["max_draft"] or block_size
        bounds = Bounds(self["min_draft"], self["tree_nodes"] if self.trees else slots)
        if self.needs_head and head is None:
            raise ValueError(
                f"--controller {self.controller}: there is no acceptance head beside the drafter; "
                "give its file with --acceptance-head"
            )
        return self.policy.build(Parts(bounds, slots, head))
