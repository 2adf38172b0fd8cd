"""The controller that weighs what a step commits against what it costs."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from specdec_plugins.decoding.controllers.base import Bounds, Constant, Draft, Outcome, Predictor
from specdec_plugins.decoding.controllers.survival import (
    CalibratedConfidence,
    NodeAverages,
    SlotAverages,
)
from specdec_plugins.decoding.cost_profile import StepCosts


def best_length(survival: Tensor, seconds: Tensor, least: int = 0) -> Tensor:
    """How many slots to draft and verify, to commit most tokens a second.

    A row whose slot j is reached and accepted with probability ``S_j`` commits
    ``1 + S_1 + … + S_m`` tokens on average of m verified slots, the bonus token included. The best
    m has the largest::

        (1 + S_1 + … + S_m) / seconds(m)

    With ``S_j = a**j`` and seconds that grow linearly this is the walltime improvement of Leviathan
    et al., *Fast Inference from Transformers via Speculative Decoding*, ICML 2023, theorem 3.8;
    here every slot has its own estimate and the seconds are measured. A batch shares a width: its
    rows' survival probabilities are averaged. More slots never cost less, so that without knowledge
    of the draft it is best to verify all that is drafted, and ``seconds`` is that of both.

    Args:
        survival: ``(k,)`` S_1 … S_k.
        seconds: ``(…, k + 1)`` of a step with 0 … k slots.
        least: the fewest slots to choose.

    Returns:
        ``(…)`` slots, between ``least`` and k.
    """
    rate = (1 + torch.nn.functional.pad(survival.cumsum(0), (1, 0))) / seconds
    return rate[..., least:].argmax(-1) + least


class Profile(Protocol):
    """Where the seconds come from."""

    def costs(self, generator: Any, sample: dict[str, Any], most: int) -> StepCosts:
        """Seconds of steps with up to ``most`` slots of 1 row to as many as the ``sample`` has."""
        ...


class CostAware(Constant):
    """``cost-aware``: the lengths that commit most tokens a second on this machine; 0 is plain AR.

    Draft lengths follow :func:`best_length` with running averages of how often each slot is
    accepted where all before it were. Given an acceptance head, or the drafter's confidence in its
    place, so do verify lengths once the draft is there, with those probabilities of its slots.

    Where drafts are trees, lengths are numbers of nodes, and in place of slots there are the most
    probable node, the second, and so on: each that is accepted commits one token more. What is left
    of a draft is verified without drafting anew where that commits more tokens a second, by what
    the drafter promises and which part of such promises it has kept.

    A batch that begins without drafts stays so: to start late a drafter must read the source and
    the whole prefix, for the few tokens that are left. What is not drafted teaches nothing, so a
    small share of the time goes into batches of whole blocks, as soon as enough has been saved for
    one: settled on plain AR it still notices a text that is easier to draft.

    Looking and deciding cost time too. After a batch of it others coast: they keep to what was
    decided, which the host knows by now, and have nothing to do. They are several where there are
    drafts, and without them as many as it takes to save for the next batch of whole blocks. Each
    time that such a batch was in vain, less is put aside for the next.
    """

    PERIOD = 8
    """Steps from one decision to the next: averages move slowly, and deciding costs time."""
    PERIODS = 2
    """Periods that a batch is expected to take; what it takes is what it is charged."""
    EXPLORATION = 0.005
    """Share of the time that may go into looking whether more should be drafted."""
    DOUBT = 16.0
    """How many times smaller that share becomes, at most, where no drafts pay."""
    COASTING = 7
    """Batches with drafts that coast after one that does not; fewer after the first ones."""
    REST = 256
    """Batches without drafts that coast, at most."""
    KEPT = (0.7, 200.0)
    """Before anything is known: of what was promised of left-over drafts this part is accepted, as
    if it had been promised so many tokens."""
    FADING = 0.98
    """What of its own experience with them remains after a period: after bad luck they are tried
    again."""
    resumes = False

    def __init__(
        self, bounds: Bounds, profile: Profile, head: Predictor | None = None, depth: int = 0
    ) -> None:
        """
        Args:
            head: what is asked about the slots of each draft.
            depth: if not 0, drafts are trees, so many tokens deep at most, and ``bounds`` are those
                of their nodes; then there is no ``head``.
        """
        super().__init__(bounds)
        self.depth = depth
        self._profile = profile
        self._head = head
        self.cuts = self.weighs_all = self.reads_probabilities = head is not None
        self._costs: StepCosts | None = None
        self._choices: Tensor | None = None
        self._savings = self._seconds = self._extra = self._part = torch.zeros(())
        self._averages: SlotAverages | None = None
        self._steps = 0
        self._coasting = False
        self._coasts = 0
        self._plain = False
        self._doubt = 1.0
        self._looks = 0
        self._known: list[int] = []
        self._enough: list[float] = []
        self._worth = torch.zeros(0)
        self._said = 0.0
        self._prior = torch.tensor([self.KEPT[0] * self.KEPT[1], self.KEPT[1]])
        self._kept = self._prior
        """Tokens of left-over drafts: how many were accepted, and how many had been promised."""

    def prepare(self, generator: Any, sample: dict[str, Any]) -> None:
        """Learn what steps cost, unless that is known; see whether this batch can coast.

        Between two batches a look at what was decided keeps no device waiting.
        """
        rows = len(sample["net_input"]["src_tokens"])
        if self._costs is None or rows >= len(self._costs.draft):
            self._costs = self._profile.costs(generator, sample, self.bounds.most)
            self._choices, self._known, self._enough = None, [], []
        if not self._coasting:
            self._look_back(rows)
        lengths = self._known[1 : rows + 1]
        # What begins without drafts ends so, and what begins with them is to go on.
        steady = bool(lengths) and (lengths[-1] == 0 or min(lengths) > 0)
        granted = self._coasts > 0 and (lengths[-1:] == [0]) == self._plain
        self._coasting = steady and granted
        self.length = lengths[-1] if self._coasting else self.bounds.most
        if self._coasting:
            self._coasts -= 1
            self._savings = self._savings + self._part

    def _look_back(self, rows: int) -> None:
        """How many batches of so many rows can coast, after one that did not."""
        if self._choices is None:
            return
        self._known, self._enough = self._choices.tolist(), self._worth.tolist()
        self._looks += 1
        self._plain = self._known[rows] == 0
        if not self._plain:
            self._doubt = 1.0
        elif bool(self._explores):
            self._doubt = min(2 * self._doubt, self.DOUBT)
        self._part = self.EXPLORATION / self._doubt * self.PERIODS * self._seconds
        if self._plain:
            missing = self.PERIODS * self._extra - self._savings
            self._coasts = int((missing / self._part).clamp(0, self.REST).ceil())
        else:
            self._coasts = min(self._looks, self.COASTING)

    def start(self, lengths: Tensor) -> Tensor | None:
        """What the sentences before taught; of a batch that coasts, nothing more."""
        self._rows = len(lengths)
        if self._coasting:
            return None
        self._size = len(lengths)
        if self._averages is None:
            self._begin(lengths.device)
        if self._choices is None:
            self._decide()
        assert self._choices is not None
        self._explores = (self._extra > 0) & (self._savings >= self._extra * self.PERIODS)
        self._drafts = self._explores | (self._choices[self._rows] > 0)
        return self._chosen()

    def _begin(self, device: torch.device) -> None:
        self._kept = self._prior = self._prior.to(device)
        averages = NodeAverages if self.depth else SlotAverages
        self._averages = averages(self.bounds.most, device)
        self._savings = torch.zeros((), device=device)
        self._explores = torch.zeros((), dtype=torch.bool, device=device)

    def draft_lengths(self, outcome: Outcome) -> Tensor:
        """As in the step before, or what a new look at the averages says."""
        if isinstance(self._head, CalibratedConfidence):
            self._head.learn(outcome)
        assert self._averages is not None
        if outcome.left_over:
            accepted = (outcome.accepted - outcome.ended.long()).sum().float()
            self._kept = self._kept + torch.stack([accepted, torch.full_like(accepted, self._said)])
        # Of a tree, nothing where there was none.
        elif outcome.path is not None or not self.depth:
            self._averages.note(outcome)
        self._steps += 1
        if self._steps % self.PERIOD == 0:
            self._averages.learn()
            self._kept = self._prior + self.FADING * (self._kept - self._prior)
            self._decide()
        return self._chosen()

    def redrafts(self, promised: list[float]) -> list[bool]:
        """Unless the rows' mean is enough, as of the last look back; before it, always. All rows
        alike: it is the whole batch whose seconds are known."""
        self._said, rows = sum(promised), len(promised)
        anew = not self._enough or self._said < self._enough[self._rows] * rows
        return [anew] * rows

    def keep(self, rows: Tensor) -> None:
        """A smaller batch has other costs: from its next decision on, or at once if it coasts."""
        self._rows = len(rows)
        if self._coasting and self.length:
            self.length = self._known[self._rows]

    def verify_lengths(self, draft: Draft, drafted: Tensor) -> Tensor:
        """The best cut, with the head's probabilities; one for all rows, since they share it."""
        costs, head = self._costs, self._head
        assert costs is not None
        assert head is not None
        assert draft.states is not None
        assert draft.probabilities is not None
        survival = head(draft.states, draft.probabilities).cumprod(-1).mean(0)
        width = draft.tokens.size(1)
        seconds = costs.draft[self._rows, width] + costs.verify[self._rows, : width + 1]
        return self._cut(best_length(survival, seconds).expand(self._rows), drafted)

    def _chosen(self) -> Tensor:
        assert self._choices is not None
        length = torch.where(self._explores, self.bounds.most, self._choices[self._rows])
        return (length * self._drafts).expand(self._rows)

    def _decide(self) -> None:
        """Choose a length for every number of rows that the batch may come to."""
        assert self._costs is not None
        assert self._averages is not None
        survival = self._averages.survival()
        seconds = self._costs.draft + self._costs.verify
        best = best_length(survival, seconds, self.bounds.least)
        # What a period of whole blocks costs above the best, at the size that the batch began with.
        tokens = 1 + torch.nn.functional.pad(survival.cumsum(0), (1, 0))
        here, chosen = seconds[self._size], best[self._size, None]
        self._seconds = here.gather(0, chosen)[0]
        self._extra = here[-1] - tokens[-1] * self._seconds / tokens.gather(0, chosen)[0]
        if self.depth:
            self._worth = self._worthwhile(tokens, seconds, best[:, None])
        spent = self._extra * self._explores
        self._savings = self._savings + self.EXPLORATION * self._seconds - spent
        self._choices = best

    def _worthwhile(self, tokens: Tensor, seconds: Tensor, chosen: Tensor) -> Tensor:
        """``(rows + 1,)`` tokens that a left-over draft must promise, by batch size.

        It is only verified, and commits one token of the verifier's besides: to be worth its time
        it must commit what whole steps commit in that. Where nothing is to be drafted but to learn,
        nothing is learned from it.
        """
        assert self._costs is not None
        commit = (tokens / seconds * self._costs.verify).gather(1, chosen)[:, 0]
        worth = (commit - 1) * self._kept[1] / self._kept[0]
        return worth.masked_fill(chosen[:, 0] == 0, torch.inf)
