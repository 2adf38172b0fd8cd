"""Speculative decoding: fairseq's generator contract, and the loop."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specdec_plugins.decoding.acceptance import (
    AcceptanceRule,
    Accepted,
    Scoring,
    StrictRule,
    Verification,
)
from specdec_plugins.decoding.batch import Batch, Results
from specdec_plugins.decoding.controllers.base import Controller
from specdec_plugins.decoding.controllers.simple import NoDrafts
from specdec_plugins.decoding.drafting import ChainDrafting, Drafting, DraftSource, TreeDrafting
from specdec_plugins.decoding.drafts import ChainDraft, Draft
from specdec_plugins.decoding.kernels import to_device
from specdec_plugins.decoding.limits import GenerationLimits, TokenBans
from specdec_plugins.decoding.resident.loop import ResidentLoop
from specdec_plugins.decoding.statistics import DecodingStatistics, Lap
from specdec_plugins.decoding.step_result import Hypothesis, Judgement, Observer, StepResult
from specdec_plugins.decoding.steps.drafter import CachedDrafter
from specdec_plugins.decoding.steps.verifier import CachedVerifier
from specdec_plugins.decoding.target_prefix import BEGINS, FORCED, with_prefix
from specdec_plugins.engines.cuda_graphs import CudaGraphsEngine
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.engine import Engine, Engines
from specdec_plugins.host.fairseq_types import EncoderOut, NetInput, Sample

if TYPE_CHECKING:
    from fairseq.data import Dictionary
    from fairseq.models.transformer import TransformerModelBase


class SpeculativeGenerator:
    """Draft, verify, commit.

    With strict acceptance the output is the verifier's greedy output; with sampling it has the
    distribution of the verifier's samples. Without a drafter every step verifies nothing and
    commits the verifier's next token: plain cached greedy decoding or sampling.

    The contract is that of fairseq's ``SequenceGenerator``: :meth:`generate` returns a list with
    one :class:`Hypothesis` for every sentence.
    """

    def __init__(
        self,
        verifier: TransformerModelBase,
        drafts: tuple[CachedDrafter | DraftSource, Controller] | None,
        tgt_dict: Dictionary,
        rule: AcceptanceRule | None = None,
        limits: GenerationLimits | None = None,
        engine: Engine | None = None,
    ) -> None:
        """``drafts``: None for none; ``engine`` runs the verifier's steps, by default PyTorch."""
        self.pad, self.eos = tgt_dict.pad(), tgt_dict.eos()
        #: Tokens that fairseq's commands do not print.
        self.symbols_to_strip_from_output = {self.eos}
        self._limits, self.rule = limits or GenerationLimits(), rule or StrictRule()
        self.controller: Controller
        drafter, self.controller = drafts or (None, NoDrafts())
        if self.rule.draws and not self.controller.real:
            fault = "looks at drafted tokens that are then not verified; use tree or constant"
            raise ValueError(f"--controller {self.controller.name}: {fault}")
        self.statistics, self.observers = DecodingStatistics(), list[Observer]()
        self.model, engine = verifier, engine or EagerEngine()
        self._source = drafter if isinstance(drafter, DraftSource) else None
        self._drafter = None if isinstance(drafter, DraftSource) else drafter
        self.drafter = None if self._drafter is None else self._drafter.model
        self.engines = Engines(engine, engine if drafter is None else drafter.engine or engine)
        #: The largest number of target tokens, EOS included, that the verifier takes.
        self.positions = int(verifier.max_decoder_positions())
        layers = () if self.drafter is None else self.drafter.feature_layers
        self._verifier = CachedVerifier(verifier, self.pad, engine, layers)
        self._scoring = Scoring.of(self.rule, self.limits)
        self._bans = TokenBans(self.limits, self.pad, tgt_dict.unk(), self.eos)
        #: Sentences that are decoded at once, if the generator :attr:`refills`; None: all.
        self.rows: int | None = None
        self._resident: ResidentLoop | None = None
        if isinstance(engine, CudaGraphsEngine):
            models = self._verifier, self._drafter, self._scoring, self._bans
            self._resident = ResidentLoop(*models, engine)

    @property
    def limits(self) -> GenerationLimits:
        """The limits that it was built with; others need another generator."""
        return self._limits

    def limited_to(self, length: int) -> SpeculativeGenerator:
        """Return a copy whose outputs have at most ``length`` tokens before EOS."""
        limited = copy(self)
        limited._limits = replace(self._limits, max_len_a=0.0, max_len_b=length)
        return limited

    def generate(
        self,
        models: object,
        sample: Sample,
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
        bos_token: int | None = None,
    ) -> list[list[Hypothesis]]:
        """Translate a batch; ``models``, fairseq's argument, is not used.

        Args:
            prefix_tokens: ``(rows, n)`` forced tokens that each target begins with, then pad.
            bos_token: stands in place of the EOS that targets begin with.

        Raises:
            ValueError: constraints, impossible prefixes, or limits that leave no output.
        """
        if constraints is not None:
            raise ValueError("constraints: not supported by speculative decoding")
        sample = with_prefix(sample, prefix_tokens, bos_token)
        self.controller.prepare(
            lambda controller: self.decode(sample, controller, DecodingStatistics())
        )
        return self.decode(sample, self.controller, self.statistics, self.observers)

    @torch.inference_mode()
    def decode(
        self,
        sample: Sample,
        controller: Controller,
        statistics: DecodingStatistics,
        observers: Sequence[Observer] = (),
        encoder_out: EncoderOut | None = None,
    ) -> list[list[Hypothesis]]:
        """Translate a batch under a controller, counted in ``statistics``; ``encoder_out``: the
        encoder's output, if it has run."""
        net_input = sample["net_input"]
        lap = statistics.stopwatch(net_input["src_tokens"].device)
        precision = next(self.model.parameters()).dtype
        results = Results(self.limits, statistics, observers, precision)
        judges = any(observer.needs_judgement for observer in observers)
        with self.engines.running():
            obstacle = self._obstacle(controller, judges, net_input)
            if self._resident is not None and obstacle is not None:
                self._resident.engine.fall_back(obstacle)
            elif self._resident is not None:
                tokens = net_input["src_tokens"].tolist()
                sources = [[token for token in row if token != self.pad] for row in tokens]
                limits = self.limits.max_lengths(list(map(len, sources)), self.positions)
                sentences, rows = list(zip(sources, limits)), self.rows or len(sources)
                return self._resident.decode(sentences, rows, controller, results)
            batch = self._start(net_input, controller, statistics, encoder_out, lap)
            drafting = self._drafting(batch, controller, judges)
            lap("encode")
            batch.keepers = self._verifier.keep, drafting.keep
            step = partial(self._step, batch, drafting, controller, lap, judges)
            return results.decode(batch, batch.forced, step)

    def _step(
        self,
        batch: Batch,
        drafting: Drafting,
        controller: Controller,
        lap: Lap,
        judges: bool,
    ) -> tuple[StepResult, Judgement | None]:
        """Draft, verify, accept and commit."""
        lap("other")
        draft = drafting.draft(batch)
        lap("draft")
        lengths = controller.verify_lengths(draft)
        lap("control")
        verified = draft if lengths is None else draft.cut(lengths)
        verification, states = self._score(batch, verified)
        lap("verify")
        accepted = self.rule.accept(verified, verification)
        result = self._commit(batch, draft, accepted, verification, states)
        drafting.observe(result)
        lap("other")
        batch.draft_lengths = controller.observe(result)
        lap("control")
        if not judges:
            return result, None
        return result, Judgement(draft, verified, self.rule, verification, controller.p_acc)

    def _start(
        self,
        net_input: NetInput,
        controller: Controller,
        statistics: DecodingStatistics,
        encoder_out: EncoderOut | None,
        lap: Lap,
    ) -> Batch:
        """Run the encoder, and commit the forced tokens by one pass of the verifier."""
        source = net_input["src_tokens"]
        limits = self.limits.max_lengths(source.ne(self.pad).sum(1).tolist(), self.positions)
        # Before the controller is asked for its longest draft.
        lengths = controller.start(len(source))
        batch = Batch(net_input, limits, self.pad, self.eos, controller.max_length)
        batch.draft_lengths = lengths
        lap("other")
        if encoder_out is None:
            encoder_out = self._verifier.encode(source, net_input["src_lengths"])
        batch.encoder_out = encoder_out
        self._verifier.begin(encoder_out, batch.capacity)
        lap("encode")
        if any(batch.forced):
            # The last forced token is read with the first draft.
            scored = self._score(batch, ChainDraft.of(batch.prefix[:, :-1]))
            lap("verify")
            statistics.verifier_calls += len(batch.rows)
            nothing = ChainDraft.empty(len(batch.rows), batch.device)
            self._commit(batch, nothing, batch.forced_tokens(), *scored)
        return batch

    def _score(self, batch: Batch, draft: Draft) -> tuple[Verification, Tensor]:
        """Return the verifier's scores of a draft, and its states ``(rows, slots, channels)``."""
        scores, states, normalisers = self._verifier.score(batch.last, draft, batch.lengths)
        if self._scoring.changes:
            width, eos = max(batch.lengths), self.eos
            rows = [tokens + [eos] * (width - len(tokens)) for tokens in batch.tokens]
            committed = to_device(rows, batch.device), batch.on_device[0]
            drafted = draft.tokens, draft.links.ancestors
            scores, normalisers = self._scoring.changed(scores, *committed, *drafted)
        depths, positions = draft.links.depths, None
        max_lengths, free_from = None, None
        full = min(batch.room) < depths.size(-1)
        if full or min(batch.lengths) < self.limits.min_len:
            lengths, limits = batch.on_device
            positions, max_lengths = lengths[:, None] + depths, limits if full else None
            free_from = batch.free_positions
        self._bans.apply(scores, positions, max_lengths, free_from)
        return Verification(scores, self.eos, normalisers), states

    def _commit(
        self,
        batch: Batch,
        draft: Draft,
        accepted: Accepted,
        verification: Verification,
        states: Tensor,
    ) -> StepResult:
        """Append what was accepted: tokens, scores, keys and values, states for the drafter."""
        self._verifier.cache.write(accepted.sources, batch.lengths, accepted.committed)
        reads = self.drafter is not None and self.drafter.uses_verifier_features
        scores = verification.of(accepted.tokens, accepted.sources)
        return batch.commit(draft, accepted, scores, states if reads else None)

    @property
    def refills(self) -> bool:
        """True if batches without forced tokens may have more than :attr:`rows` sentences: where
        one ends, the next one begins."""
        judges = any(observer.needs_judgement for observer in self.observers)
        return not self.rule.draws and self._obstacle(self.controller, judges, {}) is None

    def _obstacle(self, controller: Controller, judges: bool, net_input: NetInput) -> str | None:
        """Return the reason why recorded steps cannot decode a batch."""
        if self._resident is None:
            return "the engine records no steps"
        reasons = {
            f"--controller {controller.name} decides anew at every step": not controller.steady,
            "--trace reads every draft": judges,
            "targets begin with forced tokens": FORCED in net_input or BEGINS in net_input,
            "drafts are texts": self._source is not None,
        }
        return next((x for x, applies in reasons.items() if applies), self._resident.obstacle)

    def _drafting(self, batch: Batch, controller: Controller, judges: bool) -> Drafting:
        if self._source is not None:
            return self._source.drafting(batch, self.rule.draws)
        if self._drafter is None or not controller.max_length:
            return Drafting()
        if controller.trees:
            return TreeDrafting(self._drafter, batch, controller)
        scoring = self._scoring if self.rule.draws else None
        return ChainDrafting(self._drafter, batch, scoring, controller.needs_confidences or judges)
