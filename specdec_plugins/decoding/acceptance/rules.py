"""Acceptance rules: when a drafted token may be committed."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

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
from specdec_plugins.decoding.kernels import indices
from specdec_plugins.decoding.limits import LARGEST
from specdec_plugins.decoding.options import check_options, option, option_fields


class AcceptanceRule:
    """When a drafted token may be committed, and which token the verifier adds.

    A rule says of every drafted token, by itself, whether it may follow the one before it; chains
    then take the longest good beginning, trees the way that
    :func:`~specdec_plugins.decoding.acceptance.tree_walk.walk` finds.
    """

    name: ClassVar[str]
    """Also of the acceptance head's file for it."""
    options: ClassVar[type | None] = None
    """The dataclass of its options; None if they are its own fields."""
    lossless: ClassVar[bool] = True
    """True if the output, or its distribution, is that of the verifier alone."""
    draws: ClassVar[bool] = False
    """True if drafts are to be drawn, by :meth:`propose`."""
    several: ClassVar[bool] = True
    """True if several of the tokens that may come next may be good."""
    takes_temperature: ClassVar[bool] = True
    """True if acceptance depends on the temperature."""

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> AcceptanceRule | None:
        """Return the rule, if these values of all options ask for it.

        Raises:
            ValueError: they contradict each other, by the flags.
        """
        raise NotImplementedError

    def __str__(self) -> str:
        given = ", ".join(f"{name} {value}" for name, value in self.values.items())
        return f"{self.name} ({given})"

    @property
    def values(self) -> dict[str, Any]:
        """The values of options that select this rule."""
        return {}

    @property
    def flags(self) -> str:
        """Command-line flags that select this rule, e.g. ``--beta 3 --tau 1.0``."""
        flags = ((f"--{name.replace('_', '-')}", value) for name, value in self.values.items())
        return " ".join(flag if value is True else f"{flag} {value}" for flag, value in flags)

    def agrees(
        self, verification: Verification, own: Tensor, drafted: Tensor, after: Tensor
    ) -> Tensor:
        """Return ``(rows, drafted)`` True for drafted tokens that may be committed, each by itself.

        Args:
            own: ``(rows, slots)`` the verifier's tokens, of :meth:`own`.
            drafted: ``(rows, drafted)`` tokens.
            after: ``(rows, drafted)`` the slot whose scores judge each of them.
        """
        # Not "no better token": of two tokens that tie, only the one that is taken.
        return drafted == own.gather(1, after)

    def own(self, verification: Verification) -> Tensor:
        """Return ``(rows, slots)`` the token that the verifier commits after each slot."""
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
            room: as in :func:`walk`.
        """
        own = self.own(verification)
        after = indices(drafted.size(1), drafted.device).expand_as(drafted)
        good = self.agrees(verification, own, drafted, after)
        return walk_along(drafted, good, own, verification.eos, lengths, room)

    def probabilities_of(
        self, verification: Verification, drafted: Tensor, after: Tensor
    ) -> Tensor:
        """Return ``(rows, drafted)`` the verifier's probabilities of drafted tokens, for traces.

        Args:
            drafted, after: as in :meth:`agrees`.
        """
        # A negative penalty of unknown words adds to what was normalised.
        return verification.of(drafted, after).exp().clamp(max=1)

    def propose(self, scores: Tensor, temperature: float) -> Tensor:
        """Return ``(..., candidates)`` probabilities to draw drafts by, of the drafter's scores."""
        raise NotImplementedError(f"{self.name} acceptance draws no drafts")

    def judge_drawn(
        self,
        verification: Verification,
        drafted: Tensor,
        proposal: Proposal,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Judge tokens that were drawn by :meth:`propose`.

        Returns:
            ``(rows, slots)`` True for tokens that may be committed, and ``(rows, 1)`` the
            verifier's own token after them.
        """
        raise NotImplementedError(f"{self.name} acceptance draws no drafts")

    def accept_drawn(
        self,
        verification: Verification,
        drafted: Tensor,
        proposal: Proposal,
        lengths: Tensor,
        room: list[int] | None,
    ) -> Accepted:
        """Accept a draft whose tokens were drawn; see :meth:`accept_chain`."""
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
    def from_options(cls, values: Mapping[str, Any]) -> StrictRule:
        """Return the rule: it takes no options."""
        return cls()

    @property
    def values(self) -> dict[str, Any]:
        return {"beta": 1, "tau": 0.0}


@dataclass(frozen=True)
class RelaxedRule(AcceptanceRule):
    """A drafted token is accepted where it is good enough; output is then not the greedy one.

    It must be among the verifier's ``beta`` best tokens and its score within ``tau`` nats of the
    best (SpecDec, Xia et al., EMNLP 2023 Findings, §3.2).
    """

    beta: int = option(1, "accept among the verifier's best BETA tokens; 1 is strict", 1, LARGEST)
    tau: float = option(0.0, "and within TAU nats of its best (relaxed acceptance)", 0)

    name: ClassVar[str] = "relaxed"
    lossless: ClassVar[bool] = False

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> RelaxedRule | None:
        """Return the rule for a beta above 1."""
        return cls(values["beta"], values["tau"]) if values["beta"] > 1 else None

    @property
    def values(self) -> dict[str, Any]:
        return {"beta": self.beta, "tau": self.tau}

    def agrees(
        self, verification: Verification, own: Tensor, drafted: Tensor, after: Tensor
    ) -> Tensor:
        score = verification.at(drafted, after)
        near = verification.at(own.gather(1, after), after) - score <= self.tau
        return verification.among_best(self.beta, score, after, near & score.isfinite())


@dataclass(frozen=True)
class Drawing:
    """The options of sampling."""

    sampling: bool = option(
        False, "draw tokens instead of taking the best, as the verifier alone would"
    )
    sampling_topk: int = option(-1, "draw from the verifier's most probable tokens, so many")
    sampling_topp: float = option(
        -1.0,
        "draw from the fewest tokens that together have this probability (of what --sampling-topk "
        "left)",
        maximum=1,
    )


@dataclass(frozen=True)
class SamplingRule(AcceptanceRule):
    """The verifier draws its tokens; output is distributed as if it did so alone.

    Drafted tokens that were chosen are accepted where they are what the verifier draws; of those
    that were drawn, :func:`speculative_sampling` decides.
    """

    sampling: Sampling = field(default_factory=Sampling)

    name: ClassVar[str] = "sampling"
    options: ClassVar[type | None] = Drawing
    several: ClassVar[bool] = False
    draws: ClassVar[bool] = True

    def __str__(self) -> str:
        return str(self.sampling)

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> SamplingRule | None:
        """Return the rule for ``--sampling``."""
        sampling = Sampling(values["sampling_topk"], values["sampling_topp"])
        if not values["sampling"]:
            if str(sampling) != "sampling":
                raise ValueError("--sampling-topk, --sampling-topp: give --sampling too")
            return None
        if values["beta"] > 1 or values["tau"] > 0:
            raise ValueError("--beta, --tau: go without --sampling, which is lossless")
        return cls(sampling)

    @property
    def values(self) -> dict[str, Any]:
        found: dict[str, Any] = {"sampling": True}
        if self.sampling.topk > 0:
            found["sampling_topk"] = self.sampling.topk
        if self.sampling.topp > 0:
            found["sampling_topp"] = self.sampling.topp
        return found

    def own(self, verification: Verification) -> Tensor:
        return draw(self.sampling.probabilities(verification.log_probabilities))

    def probabilities_of(
        self, verification: Verification, drafted: Tensor, after: Tensor
    ) -> Tensor:
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


RULES: tuple[type[AcceptanceRule], ...] = (SamplingRule, RelaxedRule, StrictRule)
"""All rules, in the order in which options are tried; the last one is the default."""
RULE_OPTIONS: tuple[type, ...] = tuple(rule.options or rule for rule in RULES)
"""The dataclasses of the options of all rules."""


def choose_rule(values: Mapping[str, Any] | Namespace) -> AcceptanceRule:
    """Return the rule that options ask for.

    Args:
        values: values by name, or a command line's; missing values have their defaults.

    Raises:
        ValueError: a value that cannot be, or options that contradict each other, by their flags.
    """
    given = values if isinstance(values, Mapping) else vars(values)
    known: dict[str, Any] = {}
    for owner in RULE_OPTIONS:
        options = owner(**{name: given[name] for name in option_fields(owner) if name in given})
        check_options(options)
        known |= vars(options)
    return next(rule for rule in (kind.from_options(known) for kind in RULES) if rule)


RELAXED = RelaxedRule(beta=3, tau=1.0)
"""Relaxed acceptance without values, as in the paper's tables."""


def rule_named(name: str, relaxed: RelaxedRule = RELAXED) -> AcceptanceRule:
    """Return the rule that a ``--rule`` names: ``strict``, ``relaxed`` or ``relaxed:BETA:TAU``.

    Raises:
        ValueError: it names none.
    """
    found = re.fullmatch(r"relaxed:(\d+):(\d*\.?\d+)", name)
    if found is not None and int(found[1]) > 1:
        return choose_rule({"beta": int(found[1]), "tau": float(found[2])})
    if name not in ("strict", "relaxed"):
        raise ValueError(
            f"--rule {name}: must be strict, relaxed or relaxed:BETA:TAU, for example "
            "relaxed:5:3.0; BETA must be at least 2"
        )
    return relaxed if name == "relaxed" else StrictRule()
