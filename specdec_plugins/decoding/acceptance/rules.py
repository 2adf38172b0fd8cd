"""Acceptance rules: when a drafted token may be committed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from specdec_plugins.decoding.acceptance.sampling import (
    Proposal,
    draw,
    log_probabilities,
    speculative_sampling,
    tempered,
    truncated,
)
from specdec_plugins.decoding.acceptance.verification import (
    Accepted,
    Drafted,
    Verification,
    walk,
)
from specdec_plugins.decoding.kernels import indices, on_host, to_device
from specdec_plugins.decoding.limits import LARGEST, GenerationLimits, penalised
from specdec_plugins.decoding.options import check_options, option, option_fields
from specdec_plugins.files.output import JsonObject

#: All rules, in the order in which options are tried; the last one is the default.
RULES: list[type[AcceptanceRule]] = []
RuleType = TypeVar("RuleType", bound="type[AcceptanceRule]")


def register(rule: RuleType) -> RuleType:
    """Make a rule known to flags, configurations and experiments."""
    RULES.insert(0, rule)
    return rule


@dataclass(frozen=True)
class AcceptanceRule:
    """Decides which drafted tokens are committed, and which token the verifier adds.

    A rule judges every drafted token by itself; :func:`.verification.walk` then follows the good
    ones. For the draft ``a b c``, of which the verifier would write ``a b d``, :meth:`judge` says
    ``True True False`` and :meth:`accept` commits ``a b d``. The fields of a subclass are its
    options.
    """

    #: Also part of the file name of an acceptance head for this rule.
    name: ClassVar[str]
    #: True if the output, or its distribution, is the verifier's.
    lossless: ClassVar[bool] = True
    #: True if drafts are to be drawn.
    draws: ClassVar[bool] = False
    #: True if several tokens may be good at the same position.
    several: ClassVar[bool] = True
    #: True if acceptance depends on the temperature.
    takes_temperature: ClassVar[bool] = True

    @classmethod
    def from_options(cls, values: JsonObject) -> AcceptanceRule | None:
        """Return the rule, if these values of all options ask for it."""
        return cls()

    def __str__(self) -> str:
        options = ", ".join(f"{name} {value}" for name, value in asdict(self).items() if value > 0)
        return f"{self.name} ({options})" if options else self.name

    @property
    def values(self) -> JsonObject:
        """The values of options that select this rule."""
        return asdict(self)

    def accept(self, draft: Drafted, verification: Verification) -> Accepted:
        """Return what a step commits: accepted tokens, and the verifier's token after them."""
        tokens = draft.tokens
        if not tokens.size(1):
            verifier_tokens = self.verifier_tokens(verification)
            nothing = [0] * len(verifier_tokens)
            one_each = [1] * len(verifier_tokens)
            root = torch.zeros_like(verifier_tokens)
            return Accepted(verifier_tokens, root, one_each, nothing, nothing)

        lengths = None if draft.proposal is None else to_device(draft.drafted, tokens.device)
        after = draft.links.after.expand_as(tokens)
        good, verifier_tokens = self.judge(verification, tokens, after, draft.proposal, lengths)
        verifier_tokens = verifier_tokens.expand(-1, tokens.size(1) + 1)
        return walk(
            on_host(draft.links.after),
            on_host(tokens),
            good,
            verifier_tokens,
            verification.eos,
            draft.drafted,
        )

    def judge(
        self,
        verification: Verification,
        drafted: Tensor,
        after: Tensor,
        proposal: Proposal | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Judge drafted tokens, by tensor code alone.

        Args:
            drafted: ``(rows, drafted)`` tokens.
            after: ``(rows, drafted)`` the slot whose scores judge each of them.
            proposal: the distributions that they were drawn from; None: they were chosen.
            lengths: with a proposal, ``(rows,)`` the number of each row's tokens; None: all.

        Returns:
            ``(rows, drafted)`` True for tokens that may be committed, and ``(rows, slots)`` the
            verifier's token after each slot, or ``(rows, 1)`` after the accepted ones.
        """
        verifier_tokens = self.verifier_tokens(verification)
        return self.agrees(verification, verifier_tokens, drafted, after), verifier_tokens

    def verifier_tokens(self, verification: Verification) -> Tensor:
        """Return ``(rows, slots)`` the token that the verifier commits after each slot."""
        return verification.best

    def agrees(
        self, verification: Verification, verifier_tokens: Tensor, drafted: Tensor, after: Tensor
    ) -> Tensor:
        """Return ``(rows, drafted)`` True for drafted tokens that may be committed.

        Args:
            verifier_tokens: ``(rows, slots)`` those of :meth:`verifier_tokens`.
            drafted: ``(rows, drafted)`` tokens.
            after: ``(rows, drafted)`` the slot whose scores judge each of them.
        """
        # Not "no better token": of two tokens that tie, only one is the verifier's.
        return drafted == verifier_tokens.gather(1, after)

    def probabilities_of(
        self, verification: Verification, drafted: Tensor, after: Tensor
    ) -> Tensor:
        """Return ``(rows, drafted)`` the verifier's probabilities of drafted tokens, for traces."""
        # A negative penalty for unknown words raises normalised probabilities.
        return verification.of(drafted, after).exp().clamp(max=1)


@register
@dataclass(frozen=True)
class StrictRule(AcceptanceRule):
    """Accepts the verifier's best token: the output is its greedy output."""

    name: ClassVar[str] = "strict"
    several: ClassVar[bool] = False
    takes_temperature: ClassVar[bool] = False

    @property
    def values(self) -> JsonObject:
        return {"beta": 1, "tau": 0.0}


@register
@dataclass(frozen=True)
class RelaxedRule(AcceptanceRule):
    """Accepts good tokens; the output may differ from the greedy one.

    A token must be among the verifier's ``beta`` best and its score within ``tau`` nats of the
    best (SpecDec, Xia et al., EMNLP 2023 Findings, §3.2).
    """

    beta: int = option(1, "accept any of the verifier's BETA best tokens (1: strict)", 1, LARGEST)
    tau: float = option(0.0, "with --beta: if within TAU nats of its best", 0)

    name: ClassVar[str] = "relaxed"
    lossless: ClassVar[bool] = False

    @classmethod
    def from_options(cls, values: JsonObject) -> RelaxedRule | None:
        return cls(values["beta"], values["tau"]) if values["beta"] > 1 else None

    def agrees(
        self, verification: Verification, verifier_tokens: Tensor, drafted: Tensor, after: Tensor
    ) -> Tensor:
        score = verification.at(drafted, after)
        near = verification.at(verifier_tokens.gather(1, after), after) - score <= self.tau
        return verification.among_best(self.beta, score, after, near & score.isfinite())


@register
@dataclass(frozen=True)
class SamplingRule(AcceptanceRule):
    """The verifier draws its tokens; the output has the distribution of its samples."""

    sampling_topk: int = option(-1, "draw from the verifier's TOPK most probable tokens")
    sampling_topp: float = option(
        -1.0,
        "draw from the fewest tokens that together have this probability (among those that "
        "--sampling-topk leaves)",
        maximum=1,
    )
    #: Only declares the flag: every instance of this rule draws.
    sampling: bool = option(
        False, "draw tokens instead of taking the best, as the verifier alone would"
    )

    name: ClassVar[str] = "sampling"
    several: ClassVar[bool] = False
    draws: ClassVar[bool] = True

    @classmethod
    def from_options(cls, values: JsonObject) -> SamplingRule | None:
        rule = cls(values["sampling_topk"], values["sampling_topp"])
        if not values["sampling"]:
            if len(rule.values) > 1:
                raise ValueError("--sampling-topk, --sampling-topp: give --sampling too")
            return None
        if values["beta"] > 1 or values["tau"] > 0:
            raise ValueError("--beta, --tau: go without --sampling, which is lossless")
        return rule

    @property
    def values(self) -> JsonObject:
        return {"sampling": True, **{name: x for name, x in asdict(self).items() if x > 0}}

    def probabilities(self, lprobs: Tensor) -> Tensor:
        """Return ``(…, vocab)`` probabilities to draw by."""
        return truncated(lprobs, self.sampling_topk, self.sampling_topp)

    def verifier_tokens(self, verification: Verification) -> Tensor:
        return draw(self.probabilities(verification.log_probabilities))

    def probabilities_of(
        self, verification: Verification, drafted: Tensor, after: Tensor
    ) -> Tensor:
        p = self.probabilities(verification.log_probabilities)
        return p.flatten(1).gather(1, after * p.size(-1) + drafted)

    def propose(self, scores: Tensor, temperature: float) -> Tensor:
        """Return ``(..., candidates)`` probabilities of the drafter's scores to draw drafts by."""
        return self.probabilities(log_probabilities(scores, temperature))

    def judge(
        self,
        verification: Verification,
        drafted: Tensor,
        after: Tensor,
        proposal: Proposal | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        if proposal is None:
            return super().judge(verification, drafted, after)
        p = self.probabilities(verification.log_probabilities)
        accepted, token = speculative_sampling(p, drafted, proposal, lengths)
        return indices(drafted.size(1), drafted.device) < accepted[:, None], token


def choose_rule(asked: Mapping[str, Any]) -> AcceptanceRule:
    """Return the rule that options ask for; missing ones have their defaults.

    Raises:
        ValueError: an option out of its bounds, or options of two rules.
    """
    options: JsonObject = {}
    for kind in RULES:
        rule = kind(**{name: asked[name] for name in option_fields(kind) if name in asked})
        check_options(rule)
        options |= vars(rule)
    chosen = (kind.from_options(options) for kind in RULES)
    rule, *others = [rule for rule in chosen if rule is not None]
    if len(others) > 1:  # the last is the default
        asked_for = ", ".join(map(str, [rule, *others[:-1]]))
        raise ValueError(f"{asked_for}: only one rule can decide what is accepted")
    return rule


@dataclass(frozen=True)
class Scoring:
    """All that acceptance depends on beside the models: an acceptance head is trained for it."""

    rule: AcceptanceRule = field(default_factory=StrictRule)
    temperature: float = 1.0
    repetition_penalty: float = 1.0

    @classmethod
    def of(cls, rule: AcceptanceRule, limits: GenerationLimits) -> Scoring:
        """Return a rule's scoring with the options of ``limits``."""
        return cls(rule, limits.temperature, limits.repetition_penalty)

    @property
    def changes(self) -> bool:
        """True if a verifier's scores are changed before they are judged."""
        return self.repetition_penalty != 1 or self.temperature != 1

    def changed(self, scores: Tensor, *output: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores with penalty and temperature, and their normalisers.

        ``output``: arguments of :func:`penalised` from ``committed`` on.
        """
        scores = penalised(scores, self.repetition_penalty, *output)
        scores = tempered(scores, self.temperature)
        return scores, scores.logsumexp(-1)

    @property
    def values(self) -> JsonObject:
        """All values by name, as the settings of an acceptance head have them."""
        return {
            **self.rule.values,
            "rule_temperature": self.temperature if self.rule.takes_temperature else 1.0,
            "repetition_penalty": self.repetition_penalty,
        }
