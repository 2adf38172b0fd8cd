"""A system: a decoder, and how it computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specdec_plugins.decoding.acceptance import AcceptanceRule
from specdec_plugins.decoding.controllers import POLICIES, ControllerOptions
from specdec_plugins.engines.engine import described
from specdec_plugins.files.errors import InferenceError, counted
from specdec_plugins.files.output import JsonObject
from specdec_plugins.inference.settings import Settings

AR = "AR"
DRAFTER = "drafter"
FAIRSEQ = "fairseq"
CTRANSLATE2 = "CTranslate2"


@dataclass(frozen=True)
class System:
    """Stock fairseq, CTranslate2, our AR, the drafter alone, or a controller."""

    name: str
    """Unique among systems of as many threads, and part of file names."""
    settings: Settings
    """All but the device and the batch size; of CTranslate2 only limits count."""
    threads: int
    compute_type: str | None = None
    """What CTranslate2 calls its precision; None for any other system."""

    @property
    def label(self) -> str:
        """Its name, with the threads."""
        return f"{self.name}, {counted(self.threads, 'thread')}"

    @property
    def strategy(self) -> str:
        """The strategy of the settings, or ``CTranslate2``."""
        return self.settings.strategy if self.compute_type is None else CTRANSLATE2

    @property
    def policy(self) -> str:
        """The controller's name, or the strategy where nothing is controlled."""
        return self.options.controller if self.options is not None else self.strategy

    @property
    def real(self) -> bool:
        """False of what knows more than a decoder can."""
        return self.policy not in POLICIES or POLICIES[self.policy].real

    @property
    def engine(self) -> str:
        """The engine that was asked for; stock search is PyTorch's."""
        if self.compute_type is not None:
            return CTRANSLATE2
        return "eager" if self.strategy == FAIRSEQ else self.settings.engine

    @property
    def precision(self) -> str:
        """The precision that was asked for."""
        own = self.settings.precision
        return self.compute_type or described(own, self.settings.drafter_precision or own)

    @property
    def rule(self) -> AcceptanceRule | None:
        """The acceptance rule, by which AR too draws; None where none is asked."""
        return self.settings.rule if self.options or self.draws else None

    @property
    def draws(self) -> bool:
        """Whether its tokens are drawn: output then differs from round to round."""
        return self.settings.rule.draws

    @property
    def beam(self) -> int:
        """1 of all but stock fairseq."""
        return self.settings.beam if self.strategy == FAIRSEQ else 1

    @property
    def options(self) -> ControllerOptions | None:
        """The options of its controller, if it has one."""
        return self.settings.controller if self.strategy == "specdec" else None

    @property
    def threshold(self) -> float | None:
        """The threshold of a policy that has one."""
        return self.options.swept("threshold") if self.options else None

    @property
    def tree_nodes(self) -> int | None:
        """The most nodes of the trees that are verified; None where chains are."""
        return self.options.swept("nodes") if self.options else None

    def describe(self) -> JsonObject:
        """Return what sets it apart from other systems of its experiment."""
        options = self.options.describe() if self.options else None
        if options:
            # A head is known by its content.
            options.pop("acceptance_head", None)
        return {
            "strategy": self.strategy,
            "k": self.settings.block_size,
            "options": options,
            "rule": self.rule.values if self.rule else None,
            "beam": self.beam,
            "engine": self.engine,
            "precision": self.precision,
            "drafter_precision": self.settings.drafter_precision,
            "threads": self.threads,
        }


def choose_baseline(systems: Sequence[System], asked: str | None) -> str:
    """Return the name of the system with which others are compared: what was asked for, CTranslate2
    in float32, or the first.

    Raises:
        InferenceError: it is not among them.
    """
    names = list(dict.fromkeys(system.name for system in systems))
    if asked is None:
        usual = f"{CTRANSLATE2} float32"
        return usual if usual in names else names[0]
    if asked not in names:
        raise InferenceError(f"--baseline '{asked}': is not one of the systems: {', '.join(names)}")
    return asked
