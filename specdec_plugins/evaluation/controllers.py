"""The systems of a comparison of controllers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from specdec_plugins.decoding.controllers import POLICIES, ControllerOptions, controller_options
from specdec_plugins.evaluation.systems import AR, DRAFTER, System
from specdec_plugins.inference.settings import Settings

CONTROLLERS = tuple(name for name in POLICIES if name != "none")
"""The controllers that a sweep compares with each other; ``none`` is AR, which is always there."""
REFUSED = "looks at drafted tokens that are then not verified, which --sampling must not depend on"
CONSTANTS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 25)
SWEPT = {name: option for name, option in controller_options().items() if option.sweep}
"""The options of which a sweep compares several values."""


@dataclass(frozen=True)
class Controllers:
    """Which controllers are compared, each by what values of its options."""

    names: tuple[str, ...] = CONTROLLERS
    constants: tuple[int, ...] | None = None
    """k of each ``constant`` system; None is a handful up to what the drafter was trained for."""
    block_sizes: tuple[int, ...] | None = None
    """k of each of the others; None is what the drafter was trained for."""
    swept: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Values of options of ``SWEPT`` by name; others have their own."""


def controlled_systems(
    base: Settings, choice: Controllers, trained: int, threads: int
) -> list[System]:
    """AR, the drafter alone, and every controller with every k and value of the choice.

    With sampling the drafter is not alone: it takes its best tokens. What looks at a whole draft
    before it cuts it is left out beside what does not.

    Args:
        base: what all share; its controller's options but those that are swept are those of all.
        trained: the k that the drafter was trained for.

    Raises:
        ValueError: a k, bound, value or controller that cannot be, naming its flag.
    """
    for name in choice.names:
        if name not in CONTROLLERS:
            raise ValueError(f"--controller {name}: must be one of {', '.join(CONTROLLERS)}")
    standing = [k for k in CONSTANTS if k < trained] + [trained]
    constants = _checked("--constant-k", choice.constants or standing, trained)
    sizes = _checked("--block-size", choice.block_sizes or [trained], trained)
    plain = replace(base, controller=ControllerOptions(), block_size=None)
    found = {AR: replace(plain, strategy=AR)}
    if not base.rule.draws:
        found[DRAFTER] = replace(plain, strategy=DRAFTER, block_size=trained)
    if "constant" in choice.names:
        found |= {f"constant k {k}": replace(plain, block_size=k) for k in constants}
    for k in sizes:
        for name, options in _controlled(base.controller, choice):
            # The generator would find it too, but only once that is built.
            options.check_block_size(k)
            if not (base.rule.draws and _sees_whole_draft(options, k)):
                found[f"{name} k {k}"] = replace(base, controller=options, block_size=k)
    systems = [System(name, settings, threads) for name, settings in found.items()]
    for name in choice.names:
        if name not in {system.policy for system in systems}:
            raise ValueError(f"--controller {name}: {REFUSED}; leave it out")
    return systems


def _sees_whole_draft(options: ControllerOptions, k: int) -> bool:
    def head(states: Tensor, confidences: Tensor) -> Tensor:
        raise NotImplementedError("the controller is only asked what it needs")

    return options.build(k, head).needs.whole_draft


def _checked(flag: str, sizes: Sequence[int], trained: int) -> list[int]:
    for k in sizes:
        if not 1 <= k <= trained:
            raise ValueError(f"{flag} {k}: the drafter was trained for blocks of 1 to {trained}")
    return list(sizes)


def _controlled(
    base: ControllerOptions, choice: Controllers
) -> Iterator[tuple[str, ControllerOptions]]:
    """Name and options of everything but ``constant``."""
    for name in choice.names:
        if name == "constant":
            continue
        options = base.having(name)
        switches = [o.name.split("_")[0] for o in options.used if options[o.name] is True]
        swept = [o for o in options.used if o.sweep]
        for option in swept:
            for value in choice.swept.get(option.name) or option.sweep:
                parts = [name, f"{value:g}", *switches]
                yield " ".join(parts), options.having(name, **{option.name: value})
        if not swept:
            yield " ".join([name, *switches]), options
