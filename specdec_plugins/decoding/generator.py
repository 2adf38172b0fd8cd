"""Speculative decoding: fairseq's generator contract, and the loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specdec_plugins.decoding.acceptance import AcceptanceRule, Scoring, StrictRule
from specdec_plugins.decoding.batch import Batch
from specdec_plugins.decoding.controllers.base import Controller
from specdec_plugins.decoding.controllers.simple import NoDrafts
from specdec_plugins.decoding.drafting import (
    ChainDrafting,
    Drafting,
    DraftSource,
    MakeSource,
    TreeDrafting,
)
from specdec_plugins.decoding.hypotheses import Hypotheses
from specdec_plugins.decoding.limits import GenerationLimits, TokenBans
from specdec_plugins.decoding.loop import Loop
from specdec_plugins.decoding.resident.loop import ResidentLoop
from specdec_plugins.decoding.statistics import Clock, DecodingStatistics
from specdec_plugins.decoding.step_result import Hypothesis, Observer
from specdec_plugins.decoding.steps.drafter import CachedDrafter
from specdec_plugins.decoding.steps.verifier import CachedVerifier
from specdec_plugins.decoding.target_prefix import BEGINS, FORCED, with_prefix
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.engine import Engine, Engines
from specdec_plugins.host.fairseq_types import EncoderOut, NetInput, Sample
from specdec_plugins.models.drafter import Drafter

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
        drafts: tuple[CachedDrafter | MakeSource, Controller] | None,
        tgt_dict: Dictionary,
        *,
        rule: AcceptanceRule = StrictRule(),
        limits: GenerationLimits = GenerationLimits(),
        engine: Engine | None = None,
        reads_sources: bool = True,
    ) -> None:
        """
        Args:
            drafts: None for none.
            engine: runs the verifier's steps, by default PyTorch.
            reads_sources: False if :meth:`decode` is always given what another model has read.
        """
        self.pad = tgt_dict.pad()
        self.eos = tgt_dict.eos()
        #: Tokens that fairseq's commands do not print.
        self.symbols_to_strip_from_output = {self.eos}
        self._scoring = Scoring.of(rule, limits)
        self._bans = TokenBans(limits, self.pad, tgt_dict.unk(), self.eos)
        self.controller: Controller
        drafter, self.controller = drafts or (None, NoDrafts())
        if self.rule.draws and not self.controller.real:
            raise ValueError(
                f"--controller {self.controller.name}: looks at drafted tokens that are then not "
                "verified; use tree or constant"
            )
        self.statistics = DecodingStatistics()
        self.observers = list[Observer]()
        self.model = verifier
        engine = engine or EagerEngine()
        self._source: DraftSource | None = None
        self._drafter: CachedDrafter | None = None
        self.drafter: Drafter | None = None
        self.engines = Engines.both(engine)
        layers: tuple[int, ...] = ()
        reads_states = False
        if drafter is not None and not callable(drafter):
            self._drafter = drafter
            self.drafter = drafter.model
            self.engines = Engines(engine, drafter.engine)
            layers = drafter.model.feature_layers
            reads_states = drafter.model.uses_verifier_features
        #: The largest number of target tokens, EOS included, that the verifier takes.
        self.positions = int(verifier.max_decoder_positions())
        self._verifier = CachedVerifier(verifier, self.pad, engine, layers, reads_sources)
        if callable(drafter):
            self._source = drafter()
            self.engines = Engines(engine, self._source.engine or engine)
        self._loop = Loop(self._verifier, self._scoring, self._bans, reads_states)
        #: Sentences that are decoded at once, if the generator :attr:`refills`; None: all.
        self.rows: int | None = None
        self._resident: ResidentLoop | None = None
        if engine.recorder is not None and reads_sources:
            self._resident = ResidentLoop(
                self._verifier, self._drafter, self._scoring, self._bans, engine.recorder
            )

    @property
    def rule(self) -> AcceptanceRule:
        """The acceptance rule that it was built with."""
        return self._scoring.rule

    @property
    def limits(self) -> GenerationLimits:
        """The limits that it was built with; others need another generator."""
        return self._bans.limits

    def generate(
        self,
        models: object,
        sample: Sample,
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
        bos_token: int | None = None,
    ) -> list[list[Hypothesis]]:
        """Translate a batch; the first argument, fairseq's models, is not used.

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
        memory: Tensor | None = None,
    ) -> list[list[Hypothesis]]:
        """Translate a batch.

        Args:
            statistics: count what is decoded.
            encoder_out: the encoder's output, if it has run.
            memory: ``(layers, 2, rows, heads, source, dim)`` keys and values of the sources, if
                they have been computed.
        """
        net_input = sample["net_input"]
        precision = next(self.model.parameters()).dtype
        hypotheses = Hypotheses(self.limits, statistics, observers, precision)
        judges = any(observer.needs_judgement for observer in observers)
        with self.engines.running():
            obstacle = self._obstacle(controller, judges, net_input)
            if self._resident is not None and obstacle is not None:
                self._resident.engine.fall_back(obstacle)
            elif self._resident is not None:
                sources = [
                    [token for token in row if token != self.pad]
                    for row in net_input["src_tokens"].tolist()
                ]
                lengths = list(map(len, sources))
                limits = self.limits.max_lengths(net_input, lengths, self.positions)
                rows = self.rows or len(sources)
                return self._resident.decode(
                    list(zip(sources, limits)), rows, controller, hypotheses
                )

            clock = statistics.clock(net_input["src_tokens"].device)
            batch = self._start(net_input, controller, clock, encoder_out, memory)
            if any(batch.forced):
                with clock.phase("verify"):
                    self._loop.commit_forced(batch)
                statistics.verifier_calls += len(batch.rows)
            with clock.phase("encode"):
                drafting = self._drafting(batch, controller, judges)
            steps = self._loop.steps(batch, drafting, controller, clock, judges)
            return hypotheses.of(batch, batch.forced, steps)

    def _start(
        self,
        net_input: NetInput,
        controller: Controller,
        clock: Clock,
        encoder_out: EncoderOut | None,
        memory: Tensor | None,
    ) -> Batch:
        """Return the batch, whose sources the encoder has read."""
        source = net_input["src_tokens"]
        limits = self.limits.max_lengths(
            net_input, net_input["src_lengths"].tolist(), self.positions
        )
        # Before the controller is asked for its longest draft.
        lengths = controller.first_lengths(len(source))
        batch = Batch(net_input, limits, self.pad, self.eos, controller.max_length)
        batch.plan(lengths)
        with clock.phase("encode"):
            if encoder_out is None:
                encoder_out = self._verifier.encode(source, net_input["src_lengths"])
            batch.encoder_out = encoder_out
            self._verifier.begin(encoder_out, batch.capacity, memory)
            batch.memory = self._verifier.source_memory
        return batch

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
        if not controller.steady:
            return f"--controller {controller.name} decides anew at every step"
        if judges:
            return "--trace reads every draft"
        if FORCED in net_input or BEGINS in net_input:
            return "targets begin with forced tokens"
        if self._source is not None:
            return "drafts are texts"
        return self._resident.obstacle

    def _drafting(self, batch: Batch, controller: Controller, judges: bool) -> Drafting:
        if self._source is not None:
            return self._source.drafting(batch, self.rule.draws)
        if self._drafter is None or not controller.max_length:
            return Drafting()
        if controller.trees:
            return TreeDrafting(self._drafter, batch, controller)
        scoring = self._scoring if self.rule.draws else None
        return ChainDrafting(self._drafter, batch, scoring, controller.needs_confidences or judges)
