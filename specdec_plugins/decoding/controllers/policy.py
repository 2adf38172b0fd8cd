"""What a policy is: a name, options, and what it builds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

from torch import Tensor

from specdec_plugins.decoding.controllers.base import Bounds, Controller
from specdec_plugins.decoding.options import declared_options, option


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
    """The fewest and the most slots, or nodes where drafts are trees."""
    depth: int
    """How deep trees may be."""
    head: Head | None = None


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A policy: how it is named, and its options, a field each. As fairseq's configurations, it is
    a dataclass with each field's help in the metadata; see
    :func:`~specdec_plugins.decoding.options.option`.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    rank: ClassVar[int] = 50
    """Its place in lists."""
    drafts: ClassVar[bool] = True
    """Whether it needs a drafter at all."""
    trees: ClassVar[bool] = False
    """Whether drafts branch."""
    asks_head: ClassVar[bool] = False
    """Whether it asks an acceptance head."""
    real: ClassVar[bool] = True
    """False of what knows more than a decoder can."""

    def __post_init__(self) -> None:
        """
        Raises:
            ValueError: a value that cannot be, by its flag.
        """
        for one in declared_options(type(self)):
            one.check(getattr(self, one.name))

    @property
    def looks_around(self) -> bool:
        """Whether it decides for a row by other rows, those before it or timings too: relaxed
        output then depends on them, also in float64."""
        return False

    @property
    def measures(self) -> bool:
        """Whether it decides by what steps cost on this machine."""
        return False

    @property
    def idle(self) -> frozenset[str]:
        """The options that do nothing beside the others."""
        return frozenset()

    def build(self, parts: Parts) -> Controller:
        """What decides by these options."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class DraftingPolicy(Policy):
    """A policy that drafts."""

    min_draft: int = option(
        0, "the fewest slots to draft and, of those, to verify; of a tree: nodes", least=0
    )
    max_draft: int | None = option(
        None,
        "the most slots to draft, or how deep a tree; by default the block size",
        least=1,
        remedy="; to draft nothing give --controller none",
    )


POLICIES: dict[str, type[Policy]] = {}
"""The policies, by name."""
PolicyType = TypeVar("PolicyType", bound=type[Policy])


def register_policy(policy: PolicyType) -> PolicyType:
    """Make a policy known, as a decorator: to flags, configurations, sweeps, tables and plots.

    Raises:
        ValueError: there is one of that name.
    """
    if policy.name in POLICIES:
        raise ValueError(f"policy {policy.name}: is registered twice")
    POLICIES[policy.name] = policy
    return policy
