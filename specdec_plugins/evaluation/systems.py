"""What a sweep compares: the decoders, each with a name and the settings that make it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from specdec_plugins.decoding.controllers import NAMES, ControllerOptions
from specdec_plugins.decoding.controllers.options import check_bounds
from specdec_plugins.inference.settings import Settings

CONTROLLERS = tuple(name for name in NAMES if name != "none")
"""Those that a sweep compares with each other; ``none`` is AR, which is always there."""
AR = "AR"
DRAFTER = "drafter"
CONSTANTS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 25)
THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.9)
TREE_NODES = (8, 12, 16, 20, 24)


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
        settings = self.settings
        return settings.controller.controller if settings.strategy == "specdec" else self.name

    @property
    def threshold(self) -> float | None:
        """That of ``confidence`` and ``acceptance-head``."""
        return {
            "confidence": self.settings.controller.confidence_threshold,
            "acceptance-head": self.settings.controller.stop_threshold,
        }.get(self.policy)

    @property
    def tree_nodes(self) -> int | None:
        """Nodes of the trees that are verified, at most; None where chains are."""
        options = self.settings.controller
        return options.tree_nodes if options.drafts_trees else None

    @property
    def asks_head(self) -> bool:
        """Whether an acceptance head is asked about drafts."""
        return self.settings.strategy == "specdec" and self.settings.controller.reads_head

    def describe(self) -> dict[str, Any]:
        """What sets it apart from the other systems of its sweep."""
        options = self.settings.controller
        return {
            "policy": self.policy,
            "block_size": self.block_size,
            "threshold": self.threshold,
            "tree_nodes": self.tree_nodes,
            "redraft_below": options.redraft_below if self.policy == "tree" else None,
            "min_draft": options.min_draft,
            "max_draft": options.max_draft,
            "refit_threshold": options.refit_threshold,
            "survival": options.survival,
            "asks_head": self.asks_head,
        }


@dataclass(frozen=True)
class Choice:
    """Which systems a sweep is to have."""

    controllers: tuple[str, ...] = CONTROLLERS
    constants: tuple[int, ...] | None = None
    """k of each ``constant`` system; None is a handful up to what the drafter was trained for."""
    block_sizes: tuple[int, ...] | None = None
    """k of each of the others; None is what the drafter was trained for."""
    confidence_thresholds: tuple[float, ...] = THRESHOLDS
    stop_thresholds: tuple[float, ...] = THRESHOLDS
    tree_nodes: tuple[int, ...] = TREE_NODES
    """Of each ``tree`` system; the trees of ``cost-aware`` have the most of them at most."""


def list_systems(base: Settings, choice: Choice, trained: int) -> list[System]:
    """AR, the drafter alone, and every controller with every k and threshold of the choice.

    ``cost-aware`` is there with trees and also with a head or whatever else is to tell it what will
    be accepted, if ``base`` names one or asks for it.

    Args:
        base: what all share; its controller's options but the thresholds are those of all.
        trained: the k that the drafter was trained for.

    Raises:
        ValueError: a k, bound or threshold that cannot be, naming its flag.
    """
    for name in choice.controllers:
        if name not in CONTROLLERS:
            raise ValueError(f"--controller {name}: must be one of {', '.join(CONTROLLERS)}")
    standing = [k for k in CONSTANTS if k < trained] + [trained]
    constants = _checked("--constant-k", choice.constants or standing, trained)
    sizes = _checked("--block-size", choice.block_sizes or [trained], trained)
    plain = replace(base, controller=ControllerOptions(), block_size=None)
    systems = [
        System(AR, replace(plain, strategy="AR"), None),
        System(DRAFTER, replace(plain, strategy="drafter"), trained),
    ]
    if "constant" in choice.controllers:
        systems += [System(f"constant k {k}", replace(plain, block_size=k), k) for k in constants]
    for k in sizes:
        for name, options in _controlled(base.controller, choice):
            # The generator would find it too, but only once that is built.
            check_bounds(options, k)
            settings = replace(base, controller=options, block_size=k)
            systems.append(System(f"{name} k {k}", settings, k))
    # Of what was asked for twice, one.
    return list({system.name: system for system in systems}.values())


def _checked(flag: str, sizes: Any, trained: int) -> list[int]:
    for k in sizes:
        if not 1 <= k <= trained:
            raise ValueError(f"{flag} {k}: the drafter was trained for blocks of 1 to {trained}")
    return list(sizes)


def _controlled(base: ControllerOptions, choice: Choice) -> list[tuple[str, ControllerOptions]]:
    """Name and options of everything but ``constant``."""
    found = []
    refit = " refit" if base.refit_threshold else ""
    for name in choice.controllers:
        options = replace(base, controller=name, tree_nodes=max(choice.tree_nodes))
        if name == "confidence":
            for value in choice.confidence_thresholds:
                chosen = replace(options, confidence_threshold=value)
                found.append((f"{name} {value:g}{refit}", chosen))
        elif name == "acceptance-head":
            for value in choice.stop_thresholds:
                found.append((f"{name} {value:g}", replace(options, stop_threshold=value)))
        elif name == "tree":
            for value in choice.tree_nodes:
                found.append((f"{name} {value}", replace(options, tree_nodes=value)))
        elif name == "cost-aware":
            plain = replace(options, acceptance_head=None, survival="tree")
            found.append((name, plain))
            if base.survival in ("averages", "confidence"):
                found.append((f"{name} {base.survival}", replace(plain, survival=base.survival)))
            if base.acceptance_head or base.survival == "head":
                found.append((f"{name} head", replace(options, survival="head")))
        elif name != "constant":
            found.append((name, options))
    return found
