"""What a sweep compares: the decoders, each with a name and the settings that make it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from specdec_plugins.decoding.controllers import POLICIES, ControllerOptions, controller_options
from specdec_plugins.decoding.options import Option, Value
from specdec_plugins.inference.settings import Settings

CONTROLLERS = tuple(name for name in POLICIES if name != "none")
"""Those that a sweep compares with each other; ``none`` is AR, which is always there."""
AR = "AR"
DRAFTER = "drafter"
REFUSED = "looks at drafted tokens that are then not verified, which --sampling must not depend on"
CONSTANTS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 25)
SWEPT = {name: option for name, option in controller_options().items() if option.sweep}
"""The options of which a sweep compares several values."""


@dataclass(frozen=True)
class System:
    """A decoder: AR, the drafter alone (as SpecDec++ times them too), or a controller."""

    name: str
    """Unique in a sweep, and part of file names."""
    settings: Settings
    """All but the device and the batch size."""
    block_size: int | None
    """k; None for AR."""

    @property
    def policy(self) -> str:
        """``AR``, ``drafter``, or the controller's name."""
        return self._options.controller if self._options else self.name

    @property
    def kind(self) -> str:
        """The policy, or which kind of it: those of a kind make a curve."""
        return self._options.kind if self._options else self.name

    @property
    def threshold(self) -> float | None:
        """That of a policy that has one."""
        return self._options.swept("threshold") if self._options else None

    @property
    def tree_nodes(self) -> int | None:
        """Nodes of the trees that are verified, at most; None where chains are."""
        return self._options.swept("nodes") if self._options else None

    @property
    def asks_head(self) -> bool:
        """Whether an acceptance head is asked about drafts."""
        return self._options is not None and self._options.needs_head

    @property
    def _options(self) -> ControllerOptions | None:
        """Of its controller, if it has one."""
        return self.settings.controller if self.settings.strategy == "specdec" else None

    def describe(self) -> dict[str, Value]:
        """What sets it apart from the other systems of its sweep."""
        options = self._options.describe() if self._options else {}
        # A head is known by its content.
        options.pop("acceptance_head", None)
        return {
            "policy": self.policy,
            "block_size": self.block_size,
            "asks_head": self.asks_head,
            **options,
        }


@dataclass(frozen=True)
class Choice:
    """Which systems a sweep is to have."""

    controllers: tuple[str, ...] = CONTROLLERS
    constants: tuple[int, ...] | None = None
    """k of each ``constant`` system; None is a handful up to what the drafter was trained for."""
    block_sizes: tuple[int, ...] | None = None
    """k of each of the others; None is what the drafter was trained for."""
    swept: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values of options of ``SWEPT`` by name; others have their own. Of the nodes of trees,
    ``cost-aware`` has the most at most."""

    def values(self, option: Option[float]) -> tuple[Any, ...]:
        """Those of an option."""
        return self.swept.get(option.name) or option.sweep


def list_systems(base: Settings, choice: Choice, trained: int) -> list[System]:
    """AR, the drafter alone, and every controller with every k and value of the choice.

    With sampling the drafter is not alone: it takes its best tokens. What looks at a whole draft
    before it cuts it, as a head may for ``cost-aware``, is left out beside what does not.

    Args:
        base: what all share; its controller's options but those that are swept are those of all.
        trained: the k that the drafter was trained for.

    Raises:
        ValueError: a k, bound, value or controller that cannot be, naming its flag.
    """
    for name in choice.controllers:
        if name not in CONTROLLERS:
            raise ValueError(f"--controller {name}: must be one of {', '.join(CONTROLLERS)}")
    standing = [k for k in CONSTANTS if k < trained] + [trained]
    constants = _checked("--constant-k", choice.constants or standing, trained)
    sizes = _checked("--block-size", choice.block_sizes or [trained], trained)
    plain = replace(base, controller=ControllerOptions(), block_size=None)
    systems = [System(AR, replace(plain, strategy="AR"), None)]
    if not base.rule.draws:
        systems.append(System(DRAFTER, replace(plain, strategy="drafter"), trained))
    if "constant" in choice.controllers:
        systems += [System(f"constant k {k}", replace(plain, block_size=k), k) for k in constants]
    for k in sizes:
        for name, options in _controlled(base.controller, choice):
            # The generator would find it too, but only once that is built.
            options.check_block_size(k)
            settings = replace(base, controller=options, block_size=k)
            if not (base.rule.draws and _sees_whole_draft(options, k)):
                systems.append(System(f"{name} k {k}", settings, k))
    for name in choice.controllers:
        if name not in {system.policy for system in systems}:
            raise ValueError(f"--controller {name}: {REFUSED}; leave it out")
    # Of what was asked for twice, one.
    return list({system.name: system for system in systems}.values())


def _sees_whole_draft(options: ControllerOptions, k: int) -> bool:
    def head(states: Tensor, confidences: Tensor) -> Tensor:
        raise NotImplementedError("the controller is only asked what it needs")

    return options.build(k, head).needs.whole_draft


def _checked(flag: str, sizes: Sequence[int], trained: int) -> list[int]:
    for k in sizes:
        if not 1 <= k <= trained:
            raise ValueError(f"{flag} {k}: the drafter was trained for blocks of 1 to {trained}")
    return list(sizes)


def _controlled(base: ControllerOptions, choice: Choice) -> Iterator[tuple[str, ControllerOptions]]:
    """Name and options of everything but ``constant``."""
    most = {name: max(choice.values(option)) for name, option in SWEPT.items()}
    for name in choice.controllers:
        policy, options = POLICIES[name], base.having(name, **most)
        if name == "constant":
            continue
        switches = [o.name.split("_")[0] for o in options.used if options[o.name] is True]
        swept = [o for o in options.used if o.sweep and o.name not in policy.unswept]
        for option in swept:
            for value in choice.values(option):
                parts = [name, f"{value:g}", *switches]
                yield " ".join(parts), options.having(**{option.name: value})
        if not swept:
            yield " ".join([name, *switches]), options
