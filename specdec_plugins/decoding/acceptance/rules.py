"""Acceptance rules: when a drafted token may be committed."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from specdec_plugins.decoding.acceptance.sampling import (
    Proposal,
    Sampling,
    draw,
    log_probabilities,
    speculative_sampling,
)
from specdec_plugins.decoding.acceptance.tree_walk import walk_along
from specdec_plugins.decoding.acceptance.verification import Accepted, Verification
from specdec_plugins.decoding.indices import indices
from specdec_plugins.decoding.limits import LARGEST
from specdec_plugins.decoding.options import Option, Value, Values, by_name, flags

BETA = Option(
    "beta", 1, "accept among the verifier's best BETA tokens; 1 is strict", int, least=1,
    most=LARGEST,
)  # fmt: skip
TAU = Option("tau", 0.0, "and within TAU nats of its best (relaxed acceptance)", least=0)
SAMPLING = Option(
    "sampling", False, "draw tokens instead of taking the best, as the verifier alone would", bool
)
TOPK = Option("sampling_topk", -1, "draw from the verifier's most probable tokens, so many", int)
TOPP = Option(
    "sampling_topp", -1.0,
    "draw from the fewest tokens that together have this probability (of what --sampling-topk "
    "left)",
    most=1,
)  # fmt: skip


class AcceptanceRule:
    """When a drafted token may be committed, and which token the verifier adds.

    A rule says of every drafted token, by itself, whether it may follow the one before it; chains
    then take the longest good beginning, trees the way that
    :func:`~specdec_plugins.decoding.acceptance.tree_walk.walk` finds.
    """

    name: ClassVar[str]
    """Also of the acceptance head's file for it."""
    options: ClassVar[tuple[Option[object], ...]] = ()
    lossless: ClassVar[bool] = True
    """Whether output, or its distribution, is that of the verifier alone."""
    draws: ClassVar[bool] = False
    """Whether drafts are to be drawn, by :meth:`propose`."""
    several: ClassVar[bool] = True
    """Whether more than one of the tokens that may come next may be good."""
    takes_temperature: ClassVar[bool] = True
    """Whether what is accepted depends on the temperature."""

    @classmethod
    def from_options(cls, values: Values) -> AcceptanceRule | None:
        """Return the rule, if these values of all options ask for it.

        Raises:
            ValueError: they ask for it and for something that it does not go with, by the flags.
        """
        raise NotImplementedError

    def __str__(self) -> str:
        given = ", ".join(f"{name} {value}" for name, value in self.values.items())
        return f"{self.name} ({given})"

    @property
    def values(self) -> dict[str, Value]:
        """The values of its options that it depends on: what to give to have it."""
        return {}

    @property
    def flags(self) -> str:
        """What to give to have it."""
        return flags(self.values)

    def agrees(
        self, verification: Verification, own: Tensor, drafted: Tensor, after: Tensor
    ) -> Tensor:
        """``(rows, drafted)`` bool: which drafted tokens may be committed, each by itself; those
        that are the verifier's own, if a rule knows no better.

        Args:
            own: ``(rows, slots)`` what :meth:`own` says.
            drafted: ``(rows, drafted)`` tokens.
            after: ``(rows, drafted)`` the slot whose scores judge each of them.
        """
        # Not "no better token": of two tokens that tie, only the one that is taken.
        return drafted == own.gather(1, after)

    def own(self, verification: Verification) -> Tensor:
        """``(rows, slots)`` the token that the verifier commits after each that it read."""
        return verification.best

    def accept_chain(
        self,
        verification: Verification,
        drafted: Tensor,
        lengths: Tensor,
        room: list[int] | None,
    ) -> Accepted:
        """Return the longest good beginning of every row's draft.

        Args:
            drafted: ``(rows, slots)`` tokens, each following the one before it.
            lengths: ``(rows,)`` how many of them are each row's.
            room: as of :func:`walk`.
        """
        own = self.own(verification)
        after = indices(drafted.size(1), drafted.device).expand_as(drafted)
        good = self.agrees(verification, own, drafted, after)
        return walk_along(drafted, good, own, verification.eos, lengths, room)

    def probabilities_of(
        self, verification: Verification, drafted: Tensor, after: Tensor
    ) -> Tensor:
        """For a trace: ``(rows, drafted)`` how probable drafted tokens are to the verifier.

        Args:
            drafted, after: as of :meth:`agrees`.
        """
        # A negative penalty of unknown words adds to what was normalised.
        return verification.of(drafted, after).exp().clamp(max=1)

    def propose(self, scores: Tensor, temperature: float) -> Tensor:
        """``(…, candidates)`` what to draw drafts by, of the drafter's scores."""
        raise NotImplementedError(f"{self.name} acceptance draws no drafts")

    def judge_drawn(
        self,
        verification: Verification,
        drafted: Tensor,
        proposal: Proposal,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Of tokens ``(rows, slots)`` that were drawn by :meth:`propose`: which may be committed,
        and ``(rows, 1)`` the verifier's own after them; ``lengths``: as of :meth:`accept_chain`,
        None for all."""
        raise NotImplementedError(f"{self.name} acceptance draws no drafts")

    def accept_drawn(
        self,
        verification: Verification,
        drafted: Tensor,
        proposal: Proposal,
        lengths: Tensor,
        room: list[int] | None,
    ) -> Accepted:
        """As :meth:`accept_chain`, of tokens that were drawn."""
        good, own = self.judge_drawn(verification, drafted, proposal, lengths)
        return walk_along(drafted, good, own, verification.eos, lengths, room)


@dataclass(frozen=True)
class StrictRule(AcceptanceRule):
    """A drafted token is accepted where it is the verifier's best: its own greedy output."""

    name: ClassVar[str] = "strict"
    several: ClassVar[bool] = False
    takes_temperature: ClassVar[bool] = False

    def __str__(self) -> str:
        return "strict"

    @classmethod
    def from_options(cls, values: Values) -> StrictRule:
        """Whatever no other rule is asked for."""
        return cls()

    @property
    def values(self) -> dict[str, Value]:
        return {BETA.name: 1, TAU.name: 0.0}


@dataclass(frozen=True)
class RelaxedRule(AcceptanceRule):
    """A drafted token is accepted where it is good enough; output is then not the greedy one.

    It must be among the verifier's ``beta`` best tokens and its score within ``tau`` nats of the
    best (SpecDec, Xia et al., EMNLP 2023 Findings, §3.2).
    """

    beta: int
    tau: float = 0.0

    name: ClassVar[str] = "relaxed"
    options: ClassVar[tuple[Option[object], ...]] = (BETA, TAU)
    lossless: ClassVar[bool] = False

    @classmethod
    def from_options(cls, values: Values) -> RelaxedRule | None:
        """Asked for by a beta above 1."""
        beta = values[BETA.name]
        return cls(beta, values[TAU.name]) if beta > 1 else None

    @property
    def values(self) -> dict[str, Value]:
        return {BETA.name: self.beta, TAU.name: self.tau}

    def agrees(
        self, verification: Verification, own: Tensor, drafted: Tensor, after: Tensor
    ) -> Tensor:
        score = verification.at(drafted, after)
        near = verification.at(own.gather(1, after), after) - score <= self.tau
        return verification.among_best(self.beta, score, after, near & score.isfinite())


@dataclass(frozen=True)
class SamplingRule(AcceptanceRule):
    """The verifier draws its tokens; output is distributed as if it did so alone.

    Drafted tokens that were chosen are accepted where they are what the verifier draws; of those
    that were drawn, :func:`speculative_sampling` decides.
    """

    sampling: Sampling = field(default_factory=Sampling)

    name: ClassVar[str] = "sampling"
    options: ClassVar[tuple[Option[object], ...]] = (SAMPLING, TOPK, TOPP)
    several: ClassVar[bool] = False
    draws: ClassVar[bool] = True

    def __str__(self) -> str:
        return str(self.sampling)

    @classmethod
    def from_options(cls, values: Values) -> SamplingRule | None:
        """Asked for by ``--sampling``."""
        sampling = Sampling(values[TOPK.name], values[TOPP.name])
        if not values[SAMPLING.name]:
            if str(sampling) != "sampling":
                raise ValueError("--sampling-topk, --sampling-topp: give --sampling too")
            return None
        if values[BETA.name] > 1 or values[TAU.name] > 0:
            raise ValueError(
                f"--beta {values[BETA.name]} --tau {values[TAU.name]}: go without --sampling, "
                "which is lossless"
            )
        return cls(sampling)

    @property
    def values(self) -> dict[str, Value]:
        found: dict[str, Value] = {SAMPLING.name: True}
        if self.sampling.topk > 0:
            found[TOPK.name] = self.sampling.topk
        if self.sampling.topp > 0:
            found[TOPP.name] = self.sampling.topp
        return found

    def own(self, verification: Verification) -> Tensor:
        return draw(self.sampling.probabilities(verification.log_probabilities))

    def probabilities_of(
        self, verification: Verification, drafted: Tensor, after: Tensor
    ) -> Tensor:
        """See the base class: as it draws them."""
        p = self.sampling.probabilities(verification.log_probabilities)
        return p.flatten(1).gather(1, after * p.size(-1) + drafted)

    def propose(self, scores: Tensor, temperature: float) -> Tensor:
        return self.sampling.probabilities(log_probabilities(scores, temperature))

    def judge_drawn(
        self,
        verification: Verification,
        drafted: Tensor,
        proposal: Proposal,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        p = self.sampling.probabilities(verification.log_probabilities)
        accepted, own = speculative_sampling(p, drafted, proposal, lengths)
        return indices(drafted.size(1), drafted.device) < accepted[:, None], own


@dataclass(frozen=True)
class AcceptAll(AcceptanceRule):
    """All that is drafted is committed, and nothing is added: the drafter alone.

    It is not one of ``RULES``: a strategy asks for it, not an option.
    """

    name: ClassVar[str] = "none"
    lossless: ClassVar[bool] = False

    def accept_chain(
        self,
        verification: Verification,
        drafted: Tensor,
        lengths: Tensor,
        room: list[int] | None,
    ) -> Accepted:
        """See the base class; the last drafted token stands where the verifier's own would."""
        before = lengths - 1
        last = drafted.gather(1, before[:, None])
        all_of_them = torch.ones_like(drafted[:, 1:], dtype=torch.bool)
        found = walk_along(drafted[:, :-1], all_of_them, last, verification.eos, before, None)
        # All that is committed was drafted, and nothing was verified.
        counts = found.counts
        counts[1], counts[3] = counts[0], 0
        return Accepted(found.tokens, found.sources, counts, counts.tolist())


RULES: tuple[type[AcceptanceRule], ...] = (SamplingRule, RelaxedRule, StrictRule)
"""In the order in which they are asked whether they are meant; the last one always is."""
RULE_OPTIONS = by_name(option for rule in RULES for option in rule.options)
"""Of all rules."""


def choose_rule(values: Values | Namespace) -> AcceptanceRule:
    """Return the rule that options ask for.

    Args:
        values: values by name, or a command line's; what is missing has its default.

    Raises:
        ValueError: a value that cannot be, or options that do not go together, by their flags.
    """
    given = values if isinstance(values, Mapping) else vars(values)
    known = {
        name: option.check(given.get(name, option.default)) for name, option in RULE_OPTIONS.items()
    }
    return next(rule for rule in (found.from_options(known) for found in RULES) if rule)


RELAXED = RelaxedRule(beta=3, tau=1.0)
"""What relaxed acceptance is where nobody says how relaxed, as in the paper's tables."""


def rule_named(name: str, relaxed: RelaxedRule = RELAXED) -> AcceptanceRule:
    """Return the rule that a ``--rule`` names: ``strict``, ``relaxed`` or ``relaxed:BETA:TAU``.

    Raises:
        ValueError: it names none.
    """
    found = re.fullmatch(r"relaxed:(\d+):(\d*\.?\d+)", name)
    if found is not None and int(found[1]) > 1:
        return choose_rule({BETA.name: int(found[1]), TAU.name: float(found[2])})
    if name not in ("strict", "relaxed"):
        raise ValueError(
            f"--rule {name}: must be strict, relaxed or relaxed:BETA:TAU, for example "
            "relaxed:5:3.0; BETA must be at least 2"
        )
    return relaxed if name == "relaxed" else StrictRule()
