"""The base class of controllers, and their registry."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from operator import index
from reprlib import repr as shortened
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from specdec_plugins.decoding.drafts import Draft
from specdec_plugins.decoding.options import check_options, option_fields
from specdec_plugins.decoding.step_result import Hypothesis, StepResult
from specdec_plugins.files.output import JsonObject

#: An acceptance head: states and confidences of a :class:`ChainDraft` -> ``(rows, slots)`` the
#: probability that each slot is accepted if all before it are.
Head = Callable[[Tensor, Tensor], Tensor]
#: All controllers, by name.
CONTROLLERS: dict[str, type[Controller]] = {}
#: Types of lengths.
WHOLE_NUMBERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
ControllerType = TypeVar("ControllerType", bound="type[Controller]")


def register(controller: ControllerType) -> ControllerType:
    """Make a controller known to flags, configurations and experiments."""
    CONTROLLERS[controller.name] = controller
    return controller


@dataclass(kw_only=True)
class Controller:
    """Drafts whole blocks and verifies all of them, unless a subclass knows better.

    The fields are options. What a controller learns of a batch begins in :meth:`start`.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    #: False if no drafter is needed.
    drafts: ClassVar[bool] = True
    #: True if it asks an acceptance head.
    asks_head: ClassVar[bool] = False
    #: True if drafts come with the drafter's probability of each token.
    needs_confidences: ClassVar[bool] = False
    #: True if all steps of a batch draft and verify the same number of tokens, so that a step can
    #: be recorded.
    steady: ClassVar[bool] = False
    #: False if it knows more than a decoder can: tokens beyond those verified, which sampling does
    #: not allow.
    real: ClassVar[bool] = True
    #: True if drafts are trees.
    trees: ClassVar[bool] = False
    #: The option that, if it is set, makes drafts depend on other rows or earlier sentences.
    shared_option: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        check_options(self)
        #: The most slots to draft, of trees the largest depth.
        self.block_size = 0
        self.head: Head | None = None
        #: ``(rows, slots)`` what the head said of the last draft, for traces; None without a head.
        self.p_acc: Tensor | None = None
        #: Re-verify what is left of a tree if its expected accepted length is at least this.
        self.reuse_above = math.inf

    def ready(self, block_size: int, head: Head | None = None) -> Controller:
        """Return a copy for blocks of at most ``block_size`` slots, which has learnt nothing."""
        if self.asks_head and head is None:
            raise ValueError(
                f"--controller {self.name}: there is no acceptance head beside the drafter; "
                "give its file with --acceptance-head"
            )
        ready = replace(self)
        ready.block_size = block_size
        ready.head = head
        return ready

    @property
    def depends_on_batch(self) -> bool:
        """True if relaxed output depends on other rows or on earlier sentences."""
        return self.shared_option is not None and bool(getattr(self, self.shared_option))

    @property
    def max_length(self) -> int:
        """The largest number of tokens of a draft."""
        return self.block_size

    def prepare(self, decode: Callable[[Controller], list[list[Hypothesis]]]) -> None:
        """Try something on a batch before it is decoded; ``decode`` decodes it under another
        controller, neither timed nor counted."""

    def start(self, rows: int) -> list[int]:
        """Return the draft length of every row's first step."""
        return [self.max_length] * rows

    def verify_lengths(self, draft: Draft) -> Tensor | None:
        """Return ``(rows,)`` how many drafted tokens to verify; None for all.

        A number that is larger than a row's draft stands for all of it.
        """
        return None

    def observe(self, result: StepResult) -> list[int]:
        """Return the draft length of every row's next step.

        Lengths of finished rows are not used; the others move as ``result.kept`` says.
        """
        return [self.max_length] * len(result.rows)

    def first_lengths(self, rows: int) -> list[int]:
        """Return the lengths of :meth:`start`, checked."""
        return self._checked("start", self.start(rows), rows, range(rows), self.max_length)

    def next_lengths(self, result: StepResult) -> list[int]:
        """Return the lengths of :meth:`observe`, checked."""
        lengths = self.observe(result)
        return self._checked("observe", lengths, len(result.rows), result.kept, self.max_length)

    def cut(self, draft: Draft) -> Draft:
        """Return the part of a draft that :meth:`verify_lengths` asks for, checked."""
        lengths = self.verify_lengths(draft)
        if lengths is None:
            return draft
        rows = len(draft.drafted)
        return draft.cut(self._checked("verify_lengths", lengths, rows, range(rows), math.inf))

    def _checked(
        self, method: str, returned: Any, rows: int, used: Iterable[int], longest: float
    ) -> list[int]:
        """Return the lengths that a method returned; those of the rows ``used`` must be possible.

        A tensor's type and shape are checked before its numbers are read.
        """
        if isinstance(returned, Tensor):
            if returned.shape != (rows,) or returned.dtype not in WHOLE_NUMBERS:
                raise self._fault(
                    method,
                    f"{returned.dtype} of shape {tuple(returned.shape)}",
                    f"whole numbers of shape ({rows},)",
                )
            returned = returned.tolist()
        try:
            lengths = list(map(index, returned))
        except TypeError as error:
            raise self._fault(
                method, shortened(returned), "whole numbers, one for each row"
            ) from error
        if len(lengths) != rows:
            raise self._fault(method, f"{len(lengths)} lengths", f"{rows}, one for each row")
        for row in used:
            if not 0 <= lengths[row] <= longest:
                bound = "at least 0" if lengths[row] < 0 else f"at most {longest}"
                raise self._fault(method, f"{lengths[row]} for row {row}", bound)
        return lengths

    def _fault(self, method: str, returned: str, expected: str) -> ValueError:
        where = f"{type(self).__name__}.{method}"
        return ValueError(
            f"--controller {self.name}: {where} returned {returned}; must be {expected}"
        )

    def describe(self) -> JsonObject:
        """Return the name and all options, for records."""
        return {"controller": self.name, **asdict(self)}


def controller_of(values: Mapping[str, Any]) -> Controller:
    """Return the controller that options ask for; those of other controllers are ignored."""
    name = str(values["controller"])
    if name not in CONTROLLERS:
        raise ValueError(f"--controller {name}: must be one of {', '.join(CONTROLLERS)}")
    declared = option_fields(CONTROLLERS[name]).keys() & values.keys()
    return CONTROLLERS[name](**{option: values[option] for option in declared})
