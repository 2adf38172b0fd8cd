"""The controllers, from constant to tree, and the oracle, their bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.decoding.acceptance.sampling import leading
from specdec_plugins.decoding.controllers.base import Controller, register
from specdec_plugins.decoding.drafts import ChainDraft, Draft
from specdec_plugins.decoding.options import option
from specdec_plugins.decoding.step_result import Hypothesis, StepResult


@register
@dataclass(kw_only=True)
class Constant(Controller):
    """Drafts and verifies whole blocks, as published."""

    name = "constant"
    help = "whole blocks"
    steady = True


@register
@dataclass(kw_only=True)
class NoDrafts(Constant):
    """Plain autoregressive decoding; the null object."""

    name = "none"
    help = "draft nothing"
    drafts = False

    @property
    def max_length(self) -> int:
        return 0


@register
@dataclass(kw_only=True)
class Heuristic(Controller):
    """Drafts two slots more after a step that accepted its whole draft, else one less.

    The rule is that of Transformers' assisted generation, ``initial_draft`` its
    ``num_assistant_tokens``, ``remember_draft`` its schedule ``heuristic`` in place of
    ``heuristic_transient``.
    """

    name = "heuristic"
    help = "2 more when all was accepted, otherwise 1 fewer"
    shared_option = "remember_draft"

    initial_draft: int | None = option(
        None, "heuristic: slots of a sentence's first draft (--block-size)", minimum=1
    )
    remember_draft: bool = option(
        False,
        "heuristic: begin a sentence with the draft length at which the last one ended; relaxed "
        "output then depends on other sentences",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._first = self.initial_draft
        self._ends = list[int]()

    def start(self, rows: int) -> list[int]:
        if self._ends:
            # Transformers takes one sentence at a time; for a batch this is the mean.
            self._first = int(sum(self._ends) / len(self._ends) + 0.5)
            self._ends = []
        return [min(self._first or self.block_size, self.block_size)] * rows

    def observe(self, result: StepResult) -> list[int]:
        lengths = [
            min(drafted + 2, self.block_size) if accepted == drafted else max(drafted - 1, 1)
            for drafted, accepted in zip(result.drafted, result.accepted)
        ]
        if self.remember_draft:
            self._ends += [length for length, end in zip(lengths, result.finished) if end]
        return lengths


@dataclass(kw_only=True)
class CuttingController(Controller):
    """Verifies the first slots of a block: at least ``min_draft``, however unlikely they are."""

    needs_confidences = True

    min_draft: int = option(
        0, "confidence, acceptance-head: verify at least this many slots of a draft", minimum=0
    )


@register
@dataclass(kw_only=True)
class Confidence(CuttingController):
    """Verifies the slots before the first that the drafter itself finds unlikely."""

    name = "confidence"
    help = "cut at the first unlikely slot"
    shared_option = "refit_threshold"
    #: Slots that the threshold is fitted to.
    RECENT = 256
    #: Steps between two fits.
    PERIOD = 8

    confidence_threshold: float = option(
        0.4, "confidence: cut at the first slot less probable than this", minimum=0, maximum=1
    )
    refit_threshold: bool = option(
        False,
        "confidence: fit the threshold to recent acceptances of all sentences; relaxed output then "
        "depends on other sentences",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._threshold = self.confidence_threshold
        self._steps = 0
        self._recent = list[tuple[float, bool]]()

    def verify_lengths(self, draft: Draft) -> Tensor:
        assert isinstance(draft, ChainDraft)
        self._confidences = draft.confidences
        likely = leading(draft.confidences >= self._threshold)
        return likely.clamp(min=self.min_draft)

    def observe(self, result: StepResult) -> list[int]:
        if self.refit_threshold:
            for row, accepted, rejected in zip(
                self._confidences.tolist(), result.accepted, result.rejected
            ):
                judged = row[: accepted + rejected]
                self._recent += [(p, slot < accepted) for slot, p in enumerate(judged)]
            self._recent = self._recent[-self.RECENT :]
            self._steps += 1
            if self._steps % self.PERIOD == 0 and self._recent:
                self._threshold = best_threshold(self._recent, self._threshold)
        return super().observe(result)


def best_threshold(judged: list[tuple[float, bool]], default: float) -> float:
    """Return the threshold with the lowest rate of false accepts + 3 * rate of false rejects: that
    of Transformers' ``assistant_confidence_threshold``; ``default`` if all slots were accepted, or
    none. ``judged``: probabilities of slots, and True for those that were accepted."""
    probabilities, accepted = (np.array(column) for column in zip(*judged))
    if accepted.all() or not accepted.any():
        return default
    # In descending order: among equals the highest is taken.
    thresholds = np.unique(probabilities)[::-1]
    above = probabilities[None] >= thresholds[:, None]
    costs = above[:, ~accepted].mean(1) + 3 * (1 - above[:, accepted].mean(1))
    return float(thresholds[costs.argmin()])


@register
@dataclass(kw_only=True)
class AcceptanceHeadController(CuttingController):
    """Verifies while the probability of a rejection so far is at most the threshold.

    With the head's conditional probabilities p that is ``1 - p_1 p_2 ... p_i`` (SpecDec++, Huang
    et al., COLM 2025, section 3); ``min_draft`` and the block size are its ``--bound MIN MAX``.
    """

    name = "acceptance-head"
    help = "cut where a rejection becomes likely"
    asks_head = True

    stop_threshold: float = option(
        0.7, "acceptance-head: cut where a rejection is more probable than this", 0, 1
    )
    acceptance_head: str | None = option(
        None,
        "acceptance-head: file of the head (default: acceptance_head.pt beside the drafter, or "
        "acceptance_head.relaxed.pt or .sampling.pt for these rules)",
    )

    def verify_lengths(self, draft: Draft) -> Tensor:
        assert isinstance(draft, ChainDraft)
        assert self.head is not None
        self.p_acc = self.head(draft.states, draft.confidences)
        survival = self.p_acc.cumprod(-1)
        likely = (survival >= 1 - self.stop_threshold).sum(-1)
        return likely.clamp(min=self.min_draft)


@register
@dataclass(kw_only=True)
class Tree(Controller):
    """Drafts the most probable continuations: broad where the drafter is unsure, else deep.

    The rest of a tree after a rejected token is verified once more, after the verifier's token,
    while it promises enough: that costs no pass of the drafter.
    """

    name = "tree"
    help = "the most probable continuations, which branch; the last step's rest if promising"
    steady = trees = True
    shared_option = "max_rows"

    tree_nodes: int = option(8, "tree: tokens of a tree to verify", 1, 1024)
    redraft_below: float = option(
        2.0,
        "tree: draft anew if the rest of the last draft promises fewer accepted tokens a sentence; "
        "inf: always",
        minimum=0,
    )
    max_rows: int | None = option(
        None,
        "tree: decode larger batches without drafts (default: no limit; auto sets a limit where "
        "drafts cost time, except for relaxed output, which would depend on it)",
        minimum=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._nodes = self.tree_nodes
        self.reuse_above = self.redraft_below

    @property
    def max_length(self) -> int:
        return self._nodes

    def start(self, rows: int) -> list[int]:
        # To begin late, the drafter would have to read all that is there by then.
        self._nodes = self.tree_nodes
        if self.max_rows is not None and rows > self.max_rows:
            self._nodes = 0
        return super().start(rows)


@register
@dataclass(kw_only=True)
class Auto(Tree):
    """Stands for the recommended controller until the drafter is known."""

    name = "auto"
    help = (
        "for a pair's folder on a CPU drafts of a copy; else tree, but nothing in batches on a CPU "
        "unless output is relaxed, or constant with a drafter of --arch block"
    )


@register
@dataclass(kw_only=True)
class Oracle(Controller):
    """Verifies exactly the slots that will be accepted.

    **Not a real decoder.** It decodes each batch with whole blocks first. Where nothing would be
    accepted it drafts nothing, else the whole block: tokens depend on the number of slots.
    """

    name = "oracle"
    help = "decodes twice, to show how good chains could be: not a real decoder"
    real = False

    def prepare(self, decode: Callable[[Controller], list[list[Hypothesis]]]) -> None:
        hypotheses = [row[0] for row in decode(Constant().ready(self.block_size))]
        self._forced = [hypothesis["forced"] for hypothesis in hypotheses]
        self._accepted: list[int] = []
        # The drafted tokens that a step of whole blocks commits, by the position where it begins.
        self._plans = [
            dict(zip(accumulate((count + 1 for count in steps), initial=begin), steps))
            for steps, begin in zip((h["accepted"] for h in hypotheses), self._forced)
        ]

    def start(self, rows: int) -> list[int]:
        return self._lengths(range(rows), self._forced)

    def verify_lengths(self, draft: Draft) -> Tensor:
        return torch.tensor(self._accepted, device=draft.tokens.device)

    def observe(self, result: StepResult) -> list[int]:
        lengths = self._lengths(result.rows, result.lengths)
        self._accepted = [self._accepted[i] for i in result.kept]
        return lengths

    def _lengths(self, rows: Sequence[int], positions: list[int]) -> list[int]:
        self._accepted = [
            self._plans[row].get(position, self.block_size)
            for row, position in zip(rows, positions)
        ]
        return [self.block_size if count else 0 for count in self._accepted]
