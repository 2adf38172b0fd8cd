"""Speculative decoding: fairseq's generator contract, and the loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from specdec_plugins.decoding.acceptance import (
    AcceptAll,
    AcceptanceRule,
    Accepted,
    Scoring,
    StrictRule,
)
from specdec_plugins.decoding.batch import Batch
from specdec_plugins.decoding.controllers.base import Controller
from specdec_plugins.decoding.controllers.simple import NoDrafts
from specdec_plugins.decoding.drafting import (
    ChainDrafting,
    Drafting,
    DrawnDrafting,
    SelfScoredDrafting,
    TreeDrafting,
)
from specdec_plugins.decoding.drafts import ChainDraft, Draft
from specdec_plugins.decoding.hypothesis import Hypothesis
from specdec_plugins.decoding.limits import GenerationLimits, TokenBans
from specdec_plugins.decoding.observers import Judge, Observer
from specdec_plugins.decoding.resident.loop import ResidentLoop, changing, obstacle
from specdec_plugins.decoding.results import Results
from specdec_plugins.decoding.scorers import NoScorer, Scorer, Scores, VerifierScorer
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.decoding.step_result import StepResult
from specdec_plugins.decoding.steps.drafter import CachedDrafter
from specdec_plugins.decoding.steps.verifier import CachedVerifier
from specdec_plugins.decoding.target_prefix import TargetPrefix, has_prefix, with_prefix
from specdec_plugins.engines.cuda_graphs import CudaGraphsEngine
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.engine import Engine, Engines
from specdec_plugins.host.fairseq_types import NetInput, Sample

if TYPE_CHECKING:
    from fairseq.data import Dictionary
    from fairseq.models.transformer import TransformerModelBase

HOST = torch.device("cpu")


class SpeculativeGenerator:
    """Draft, verify, commit; with strict acceptance the output is the verifier's greedy output,
    with sampling it is distributed as what the verifier samples.

    Without a drafter every step verifies nothing and commits the verifier's next token: plain
    cached greedy decoding or sampling, on the same path. With a rule that accepts all, the drafter
    is alone.

    The contract is that of fairseq's ``SequenceGenerator``: :meth:`generate` returns, for every
    sentence, a list with one hypothesis: ``tokens`` (EOS included), ``score``,
    ``positional_scores``, ``attention`` and ``alignment`` (empty), ``steps``, ``history``, and
    ``accepted``, the number of drafted tokens that each step committed. ``statistics`` and the
    ``observers`` are called after every step.
    """

    def __init__(
        self,
        verifier: TransformerModelBase | None,
        drafter: CachedDrafter | None,
        tgt_dict: Dictionary,
        controller: Controller | None = None,
        rule: AcceptanceRule | None = None,
        limits: GenerationLimits | None = None,
        engine: Engine | None = None,
    ) -> None:
        """
        Args:
            verifier: a fairseq Transformer; None for a drafter alone that reads nothing of one.
            controller: needed with a drafter, whose blocks are as long as it asks for.
            engine: runs the verifier's steps; None is PyTorch as it is.

        Raises:
            ValueError: a controller or rule that does not go with the others, or limits that leave
                no output whatever the source.
            UnsupportedModelError: a verifier that cannot be run exactly.
            EngineError: the engine cannot run a step.
        """
        self.pad, self.eos = tgt_dict.pad(), tgt_dict.eos()
        self.symbols_to_strip_from_output = {self.eos}
        """Tokens that fairseq's commands do not print."""
        self.limits = limits or GenerationLimits()
        self.rule = rule or StrictRule()
        self._scoring = Scoring.of(self.rule, self.limits)
        self.controller = controller or NoDrafts()
        self.statistics = DecodingStatistics()
        self.observers: list[Observer] = []
        self.model = verifier
        self.drafter = None if drafter is None else drafter.model
        engine = engine or EagerEngine()
        self.engines = Engines(engine, engine if drafter is None else drafter.engine)
        if verifier is not None:
            # As a statement: of a model that fairseq has prepared for inference, eval() returns
            # None.
            verifier.eval()
        if self.rule.draws and self.controller.reads_whole_draft:
            raise ValueError(
                f"--controller {self.controller.name}: looks at drafted tokens that are then not "
                "verified, which --sampling must not depend on; use tree, constant or "
                "acceptance-head"
            )
        self._bans = TokenBans(self.limits, self.pad, tgt_dict.unk(), self.eos)
        self.positions, self._scorer = self._build_scorer(verifier)
        """Most target tokens, EOS included, of the model that limits them."""
        self.limits.check_positions(self.positions)
        self._cached = drafter
        self._draftings: dict[object, Drafting] = {}
        self._resident = self._build_resident()
        if self._resident is None:
            self._drafting_for(self.controller)

    @property
    def models(self) -> list[nn.Module]:
        """Those that there are, the verifier first."""
        return [model for model in (self.model, self.drafter) if model is not None]

    def _build_scorer(self, verifier: TransformerModelBase | None) -> tuple[int, Scorer]:
        """Who scores drafts, and the target positions that there are."""
        if not isinstance(self.rule, AcceptAll):
            layers = () if self.drafter is None else self.drafter.feature_layers
            cached = CachedVerifier(verifier, self.pad, self.engines.verifier, layers)
            positions = int(cached.model.max_decoder_positions())
            return positions, VerifierScorer(cached, self._scoring, self._bans)
        drafter = self.drafter
        assert drafter is not None
        shared = features = None
        if verifier is not None:
            shared = CachedVerifier(
                verifier, self.pad, self.engines.verifier, drafter.feature_layers
            )
            features = shared if drafter.uses_verifier_features else None
        return int(drafter.decoder.embed_positions.max_positions), NoScorer(shared, features)

    def _build_resident(self) -> ResidentLoop | None:
        """What decodes by recorded steps, where the engine can."""
        engine, scorer = self.engines.verifier, self._scorer
        if not isinstance(engine, CudaGraphsEngine):
            return None
        if not isinstance(scorer, VerifierScorer):
            engine.fall_back("the drafter is alone")
            return None
        models = scorer.verifier, self._cached
        reason = obstacle(*models, self.controller)
        if reason is not None:
            engine.fall_back(reason)
            return None
        return ResidentLoop(*models, self._scoring, self._bans, engine)

    def _resident_for(
        self, controller: Controller, observers: Sequence[Observer], net_input: NetInput
    ) -> ResidentLoop | None:
        """The same, if it can decode this under this controller for these observers."""
        if self._resident is None:
            return None
        reason = changing(controller)
        if any(one.asks_chances for one in observers):
            reason = "--trace tells of every draft"
        elif has_prefix(net_input):
            reason = "targets begin with tokens that are given"
        if reason is None:
            return self._resident
        self._resident.engine.fall_back(reason)
        return None

    def _drafting_for(self, controller: Controller, observers: Sequence[Observer] = ()) -> Drafting:
        """What makes the drafts that a controller and observers want; kept for the next batch."""
        confidences = controller.needs_confidences or any(one.asks_chances for one in observers)
        key = (controller.max_length > 0, controller.depth, confidences)
        if key not in self._draftings:
            self._draftings[key] = self._new_drafting(*key)
        return self._draftings[key]

    def _new_drafting(self, drafts: bool, depth: int, confidences: bool) -> Drafting:
        drafter = self._cached
        if drafter is None or not drafts:
            return Drafting()
        if isinstance(self.rule, AcceptAll):
            return SelfScoredDrafting(drafter, self._bans)
        if depth:
            return TreeDrafting(drafter, depth)
        if self.rule.draws:
            return DrawnDrafting(drafter, self._scoring)
        return ChainDrafting(drafter, confidences)

    def generate(
        self,
        models: object,
        sample: Sample,
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
        bos_token: int | None = None,
    ) -> list[list[Hypothesis]]:
        """Translate a batch; ``models`` is fairseq's argument, the generator has its own.

        Args:
            prefix_tokens: ``(rows, n)`` what each target is to begin with, then pad, which leaves a
                row free.
            bos_token: stands in place of the EOS that targets begin with.

        Raises:
            ValueError: constraints, prefixes that cannot be, or limits that leave no output.
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
    ) -> list[list[Hypothesis]]:
        """Translate a batch under a controller; what it takes is counted in ``statistics``.

        Raises:
            ValueError: limits that leave no output.
        """
        with self.engines.running():
            return self._decode(sample, controller, statistics, observers)

    def _decode(
        self,
        sample: Sample,
        controller: Controller,
        statistics: DecodingStatistics,
        observers: Sequence[Observer],
    ) -> list[list[Hypothesis]]:
        net_input = sample["net_input"]
        results = Results(len(net_input["src_tokens"]), self.limits, statistics)
        observers = (results, statistics, *observers)
        resident = self._resident_for(controller, observers, net_input)
        if resident is not None:
            tokens, stopwatch = net_input["src_tokens"], statistics.stopwatch
            limits = self._max_lengths(tokens)
            resident.decode(tokens, limits, controller, results, observers, stopwatch)
            return results.hypotheses
        drafting = self._drafting_for(controller, observers)
        drafting.start(statistics.stopwatch)
        batch, prefix = self._start(net_input, controller, statistics)
        if any(prefix.lengths):
            self._force(batch, prefix, statistics)
        for observer in observers:
            observer.begin(prefix.lengths)
        while batch.rows:
            draft = drafting.draft(batch, controller.reuse_above)
            with statistics.stopwatch("control", HOST):
                lengths = controller.verify_lengths(draft)
            verified = draft if lengths is None else draft.cut(lengths)
            with statistics.stopwatch("verify", batch.device):
                verification, states = self._scorer.score(batch, verified)
            room = batch.room(verified.tokens.size(1) + 1)
            accepted = verified.accept(self.rule, verification, room)
            result = self._commit(batch, draft, accepted, verification.of, states)
            drafting.note(result)
            with statistics.stopwatch("control", HOST):
                batch.plan(controller.observe(result))
            judge = Judge(self.rule, verification, controller.predicted)
            for observer in observers:
                observer(draft, verified, result, judge)
            if any(result.finished):
                self._finish(batch, result, results, drafting)
        for observer in observers:
            observer.end(results.hypotheses)
        return results.hypotheses

    def _start(
        self, net_input: NetInput, controller: Controller, statistics: DecodingStatistics
    ) -> tuple[Batch, TargetPrefix]:
        """Run the encoder and lay out the rows, in which what is forced is not committed yet."""
        source = net_input["src_tokens"]
        with statistics.stopwatch("encode", source.device):
            encoder_out = self._scorer.encode(net_input)
        max_lengths = self._max_lengths(source)
        prefix, max_lengths = TargetPrefix.of(net_input, max_lengths, self.pad, self.eos)
        with statistics.stopwatch("control", HOST):
            lengths = controller.start(len(source))
        dtype = next(self.models[0].parameters()).dtype
        # Scores are float32, as in fairseq, and float64 of a float64 verifier.
        precision = torch.promote_types(dtype, torch.float32)
        most = controller.max_length
        batch = Batch(net_input, encoder_out, prefix, max_lengths, most, precision)
        batch.plan(lengths)
        with statistics.stopwatch("encode", source.device):
            self._scorer.start(encoder_out, batch.capacity)
        return batch, prefix

    def _force(self, batch: Batch, prefix: TargetPrefix, statistics: DecodingStatistics) -> None:
        """Commit what is forced by one pass of the verifier, and none of the drafter."""
        nothing = ChainDraft.empty(len(batch.rows), batch.device)
        with statistics.stopwatch("verify", batch.device):
            forced = replace(nothing, tokens=prefix.tokens[:, :-1])
            scores, states = self._scorer.read(batch, forced)
        statistics.verifier_calls += len(batch.rows) * (states is not None)
        self._commit(batch, nothing, prefix.accepted(), scores, states)

    def _max_lengths(self, source: Tensor) -> list[int]:
        """Most tokens of each row before EOS; ``source``: ``(rows, n)``."""
        limits, counts = self.limits, source.ne(self.pad).sum(1).cpu()
        longest = limits.longest(counts).clamp(max=self.positions - 1).long()
        if int(longest.min()) < limits.min_len:
            raise ValueError(limits.fault(int(counts.min()), self.positions))
        found: list[int] = longest.tolist()
        return found

    def _commit(
        self,
        batch: Batch,
        draft: Draft,
        accepted: Accepted,
        scores: Scores,
        states: Tensor | None,
    ) -> StepResult:
        """Keep what was accepted: tokens, scores, keys and values, and what the drafter reads of
        the verifier."""
        new = max(accepted.on_host[0])
        sources = accepted.sources[:, :new]
        self._scorer.commit(accepted, batch)
        called = states is not None
        if self._cached is None or not self._cached.reads_features:
            states = None
        log_probabilities = scores(accepted.tokens[:, :new], sources)
        return batch.commit(draft, accepted, log_probabilities, states, called)

    def _finish(
        self, batch: Batch, result: StepResult, results: Results, drafting: Drafting
    ) -> None:
        """Hand out the finished rows, and go on with the others."""
        for i, row in enumerate(batch.rows):
            if result.finished[i]:
                end = batch.lengths[i] + 1
                results.finish(row, batch.tokens[i, 1:end], batch.scores[i, 1:end])
        if not result.kept:
            batch.rows = []
            return
        batch.keep(result.kept)
        width = max(batch.lengths)
        self._scorer.keep(result.kept, width)
        drafting.keep(result.kept, width)
