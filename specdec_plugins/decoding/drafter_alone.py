"""The drafter without a verifier: a baseline, as fast as drafts can be, and worse."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specdec_plugins.decoding.acceptance import Accepted
from specdec_plugins.decoding.batch import Batch, prefixes_of
from specdec_plugins.decoding.drafts import ChainDraft
from specdec_plugins.decoding.hypotheses import Hypotheses
from specdec_plugins.decoding.kernels import indices, to_device
from specdec_plugins.decoding.limits import GenerationLimits, TokenBans
from specdec_plugins.decoding.statistics import Clock, DecodingStatistics
from specdec_plugins.decoding.step_result import Hypothesis, Observer, StepResult
from specdec_plugins.decoding.steps.drafter import CachedDrafter
from specdec_plugins.decoding.steps.verifier import CachedVerifier
from specdec_plugins.decoding.target_prefix import with_prefix
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.engine import Engines
from specdec_plugins.host.fairseq_types import NetInput, Sample
from specdec_plugins.models.drafter import Drafter

if TYPE_CHECKING:
    from fairseq.data import Dictionary
    from fairseq.models.transformer import TransformerModelBase


class DrafterAlone:
    """fairseq's generator contract: whole blocks are committed as they are drafted.

    Scores are the drafter's, 0 for forced tokens; a repetition penalty is ignored.
    """

    def __init__(
        self,
        drafter: Drafter,
        verifier: TransformerModelBase | None,
        tgt_dict: Dictionary,
        block_size: int | None = None,
        limits: GenerationLimits = GenerationLimits(),
        engines: Engines | None = None,
    ) -> None:
        """Without ``verifier`` a drafter reads neither its encoder nor its states."""
        if verifier is not None:
            drafter.attach_verifier(verifier)
        self.drafter = drafter
        self.block_size = drafter.slots(block_size)
        self.engines = engines or Engines.both(EagerEngine())
        self._bans = TokenBans(limits, tgt_dict.pad(), tgt_dict.unk(), tgt_dict.eos())
        self._verifier = None
        self.positions = int(drafter.decoder.embed_positions.max_positions)
        self.statistics = DecodingStatistics()
        self.observers = list[Observer]()
        if drafter.encoder is None or drafter.uses_verifier_features:
            self._verifier = CachedVerifier(
                drafter.verifier, self._bans.pad, self.engines.verifier, drafter.feature_layers
            )
        self._drafter = CachedDrafter(drafter, self.engines.drafter)

    @property
    def limits(self) -> GenerationLimits:
        """The limits that it was built with; others need another generator."""
        return self._bans.limits

    @torch.inference_mode()
    def generate(
        self,
        models: object,
        sample: Sample,
        prefix_tokens: Tensor | None = None,
        bos_token: int | None = None,
    ) -> list[list[Hypothesis]]:
        """Translate a batch, as fairseq's ``SequenceGenerator`` does."""
        net_input = with_prefix(sample, prefix_tokens, bos_token)["net_input"]
        precision = next(self.drafter.parameters()).dtype
        hypotheses = Hypotheses(self.limits, self.statistics, self.observers, precision)
        with self.engines.running():
            clock = self.statistics.clock(net_input["src_tokens"].device)
            batch = self._start(net_input, clock)
            return hypotheses.of(batch, batch.forced, self._steps(batch, clock))

    def _start(self, net_input: NetInput, clock: Clock) -> Batch:
        """Read the source, and commit the forced tokens."""
        source = net_input["src_tokens"]
        limits = self.limits.max_lengths(
            net_input, net_input["src_lengths"].tolist(), self.positions
        )
        batch = Batch(net_input, limits, self._bans.pad, self._bans.eos, self.block_size)
        with clock.phase("encode"):
            if self._verifier is not None:
                batch.encoder_out = self._verifier.encode(source, net_input["src_lengths"])
                self._verifier.begin(batch.encoder_out, batch.capacity)
            self._drafter.start(net_input, batch.encoder_out, batch.capacity)
        if any(batch.forced):
            forced = batch.forced_tokens()
            result = self._commit(batch, forced, torch.zeros(forced.tokens.shape))
            self.statistics.verifier_calls += len(batch.rows) * result.verifier_called
        batch.plan([self.block_size] * len(batch.rows))
        return batch

    def _steps(self, batch: Batch, clock: Clock) -> Iterator[tuple[StepResult, None]]:
        """Draft blocks, and yield what is committed of each, until all rows have ended."""
        eos = self._bans.eos
        while batch.rows:
            with clock.phase("draft"):
                tokens, scores = self._draft(batch)
            rows = tokens.tolist()
            sources = indices(self.block_size, batch.device).expand_as(tokens)
            counts = [row.index(eos) + 1 if eos in row else len(row) for row in rows]
            none = [0] * len(rows)
            result = self._commit(batch, Accepted(tokens, sources, counts, counts, none), scores)
            yield result, None
            if any(result.finished):
                batch.select(result.kept)
                for model in (self._drafter, self._verifier):
                    if batch.rows and model is not None:
                        model.select(result.kept, max(batch.lengths))

    def _draft(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return ``(rows, block)`` tokens and their log-probabilities."""
        decoder = self._drafter.decoder
        slots = self.block_size
        prefixes = prefixes_of(batch, self._drafter.causal, slots)
        states, slot_scores = self._drafter.draft(prefixes, slots)
        tokens = slot_scores.choose()
        last = to_device(batch.last, batch.device)
        previous = torch.cat([last[:, None], tokens[:, :-1]], dim=1)
        logits = decoder.slot_logits(states, previous)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if decoder.draft_vocabulary is not None:
            absent = torch.full_like(logits[0, 0], -math.inf)
            absent[decoder.draft_vocabulary] = 0
            logits = logits + absent
        normalisers = logits.logsumexp(-1)
        lengths, limits = batch.on_device
        positions = lengths[:, None] + indices(slots, batch.device)
        self._bans.apply(logits, positions, limits, to_device(batch.free_from, batch.device))
        best = logits.argmax(-1)
        if not self.limits.unkpen:
            # The drafter chose without knowing what the limits forbid.
            allowed = logits.gather(-1, tokens[..., None])[..., 0] > -math.inf
            best = torch.where(allowed, tokens, best)
        return best, logits.gather(-1, best[..., None])[..., 0] - normalisers

    def _commit(self, batch: Batch, accepted: Accepted, scores: Tensor) -> StepResult:
        states = None
        if self._verifier is not None and self.drafter.uses_verifier_features:
            # The last token is read before the next block.
            read = ChainDraft.of(accepted.tokens[:, :-1])
            _, states, _ = self._verifier.score(batch.last, read, batch.lengths)
            self._verifier.cache.write(accepted.sources, batch.lengths, accepted.committed)
        result = batch.commit(ChainDraft.of(accepted.tokens), accepted, scores, states)
        return replace(result, verifier_called=states is not None)
