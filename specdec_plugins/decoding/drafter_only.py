"""The drafter alone: whole blocks are committed, and nobody verifies them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specdec_plugins.decoding.batch import Prefixes
from specdec_plugins.decoding.drafter import CachedDrafter
from specdec_plugins.decoding.hypothesis import Results
from specdec_plugins.decoding.limits import GenerationLimits, TokenBans
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.decoding.verifier import CachedVerifier
from specdec_plugins.models.drafter import Drafter
from specdec_plugins.models.encoder_runner import Encode, frozen_encoder


@dataclass
class _Batch:
    """The rows still being decoded: all have the same length, a whole number of blocks."""

    rows: list[int]
    """Where each row stands in the sample."""
    length: int
    """Committed tokens of every row."""
    tokens: Tensor
    """``(rows, capacity)`` EOS, then the committed tokens, then whatever."""
    scores: Tensor
    """``(rows, capacity)`` log-probabilities of the committed tokens under the drafter."""
    max_lengths: Tensor
    """``(rows,)`` most tokens before EOS."""
    features: Tensor | None = None
    """``(rows, k, channels)`` the verifier's states for the last block, where the drafter reads
    them."""

    def keep(self, kept: list[int]) -> Tensor:
        """Drop all rows but ``kept``; returns them as an index on the device."""
        index = torch.tensor(kept, device=self.tokens.device)
        self.rows = [self.rows[i] for i in kept]
        self.tokens, self.scores = self.tokens[index], self.scores[index]
        self.max_lengths = self.max_lengths[index]
        if self.features is not None:
            self.features = self.features[index]
        return index


class DrafterOnlyGenerator:
    """Appends drafted blocks until one holds EOS or the length limit is reached.

    It shows what the drafter is worth by itself: fast, and worse than its verifier. The contract,
    the limits and the statistics are those of :class:`SpeculativeGenerator`; every committed token
    is a drafted one, scores are the drafter's own, and pad is never drafted. A verifier is run only
    where the drafter reads its encoder or its states: then its passes are counted.
    """

    def __init__(
        self,
        drafter: Drafter,
        tgt_dict: Any,
        block_size: int | None = None,
        limits: GenerationLimits | None = None,
        verifier: Any = None,
    ) -> None:
        """``block_size`` is the one that the drafter was trained for, if not given.

        Raises:
            ValueError: a block size that the drafter was not trained for, or a drafter that needs
                its verifier and has none.
        """
        self.pad, self.eos = tgt_dict.pad(), tgt_dict.eos()
        self.limits = limits or GenerationLimits()
        self._bans = TokenBans(self.limits, self.pad, tgt_dict.unk(), self.eos)
        self.block_size = drafter.block_size if block_size is None else block_size
        if not 1 <= self.block_size <= drafter.block_size:
            raise ValueError(
                f"--block-size {self.block_size}: the drafter was trained for blocks of 1 to "
                f"{drafter.block_size}"
            )
        self.positions = int(drafter.decoder.embed_positions.max_positions)
        self.limits.check_positions(self.positions)
        drafter.eval()
        if verifier is not None:
            verifier.eval()
            drafter.attach_verifier(verifier)
        shared = drafter.encoder is None
        self._encode: Encode | None = None
        self._features: CachedVerifier | None = None
        if shared or drafter.uses_verifier_features:
            self._encode = frozen_encoder(drafter.verifier.encoder)
        if drafter.uses_verifier_features:
            self._features = CachedVerifier(drafter.verifier, self.pad)
        self.drafter = CachedDrafter(drafter)
        self.statistics = DecodingStatistics()

    @torch.inference_mode()
    def generate(
        self,
        models: Any,
        sample: dict[str, Any],
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
        **kwargs: Any,
    ) -> list[list[dict[str, Any]]]:
        """Translate a batch; ``models`` is fairseq's argument, the generator has its own.

        Raises:
            ValueError: prefix tokens or constraints, or limits that leave no output.
        """
        if prefix_tokens is not None or constraints is not None:
            raise ValueError("prefix tokens and constraints: not supported by drafting alone")
        rows = len(sample["net_input"]["src_tokens"])
        results = Results(rows, self.limits, self.statistics, bonus=0)
        batch = self._start(sample["net_input"])
        while batch.rows:
            ends = self._commit(batch, *self._draft(batch), results)
            self._finish(batch, ends, results)
        return results.end()

    def _start(self, net_input: dict[str, Tensor]) -> _Batch:
        """Run the encoders and lay out the rows."""
        source = net_input["src_tokens"]
        limits, rows = self.limits, len(source)
        longest = limits.longest(source.ne(self.pad).sum(1))
        max_lengths = longest.clamp(max=self.positions - 1).long()
        shortest, most = torch.stack([max_lengths.min(), max_lengths.max()]).tolist()
        if shortest < limits.min_len:
            length = int(source.ne(self.pad).sum(1).min())
            raise ValueError(limits.fault(length, self.positions))
        # A row's last block may start at its maximum length.
        capacity = most + 2 * (self.block_size + 1)
        with self.statistics.stopwatch("encode", source.device):
            verifier_out: dict[str, list[Tensor]] | None = None
            if self._encode is not None:
                verifier_out = self._encode(source, net_input["src_lengths"])
            encoder_out = self.drafter.encode(net_input, verifier_out)
            self.drafter.start(encoder_out, capacity)
            if self._features is not None:
                assert verifier_out is not None
                self._features.start(verifier_out, capacity)
        dtype = torch.promote_types(encoder_out["encoder_out"][0].dtype, torch.float32)
        return _Batch(
            rows=list(range(rows)),
            length=0,
            tokens=source.new_full((rows, capacity), self.eos),
            scores=torch.zeros(rows, capacity, dtype=dtype, device=source.device),
            max_lengths=max_lengths,
        )

    def _draft(self, batch: _Batch) -> tuple[Tensor, Tensor | None]:
        """The next block: ``(rows, k, vocab)`` the drafter's logits, and its own choice.

        The choice, ``(rows, k)``, is None where it is no more than the best token of each slot.
        """
        k, length = self.block_size, batch.length
        new = min(length, k) if self.drafter.causal else length
        full = batch.max_lengths.new_full
        rows = len(batch.rows)
        with self.statistics.stopwatch("draft", batch.tokens.device):
            prefixes = Prefixes(
                batch.tokens[:, length + 1 - new : length + 1],
                full((rows,), new),
                full((rows,), length),
                length,
                batch.features,
            )
            states = self.drafter.states(prefixes, k)
            decoder, last = self.drafter.decoder, batch.tokens[:, length]
            if getattr(decoder, "previous", None) is None:
                return decoder.output_layer(states), None
            chosen = decoder.choose(states, last)
            previous = torch.cat([last[:, None], chosen[:, :-1]], dim=1)
            return decoder.slot_logits(states, previous), chosen

    def _commit(
        self,
        batch: _Batch,
        logits: Tensor,
        chosen: Tensor | None,
        results: Results,
    ) -> list[int]:
        """Take a token for every slot; returns each row's tokens up to EOS, 0 without one."""
        k, begin = self.block_size, batch.length + 1
        scores = logits.to(batch.scores.dtype)
        normalizer = scores.logsumexp(-1)
        positions = batch.length + torch.arange(k, device=scores.device)
        self._bans.apply(scores, positions, batch.max_lengths)
        tokens = scores.argmax(-1)
        if chosen is not None and not self.limits.unkpen:
            # The drafter chose without knowing what the limits forbid.
            allowed = scores.gather(-1, chosen[..., None])[..., 0] > -math.inf
            tokens = torch.where(allowed, chosen, tokens)
        lprobs = scores.gather(-1, tokens[..., None])[..., 0] - normalizer
        batch.tokens[:, begin : begin + k] = tokens
        batch.scores[:, begin : begin + k] = lprobs
        batch.length += k
        slots = torch.arange(1, k + 1, device=tokens.device)
        ends: list[int] = torch.where(tokens == self.eos, slots, k + 1).amin(1).tolist()
        committed = [min(end, k) for end in ends]
        results.step(batch.rows, committed)
        self.statistics.count_step(committed, committed, [k] * len(committed), None)
        return [end if end <= k else 0 for end in ends]

    def _finish(self, batch: _Batch, ends: list[int], results: Results) -> None:
        """Hand out the rows whose last block has an end, and go on with the others."""
        for i, (row, length) in enumerate(zip(batch.rows, ends, strict=True)):
            if length:
                end = batch.length - self.block_size + length + 1
                results.finish(row, batch.tokens[i, 1:end], batch.scores[i, 1:end])
        kept = [i for i, end in enumerate(ends) if not end]
        if not kept:
            batch.rows = []
            return
        if any(ends):
            index = batch.keep(kept)
            self.drafter.keep(index, batch.length)
            if self._features is not None:
                self._features.keep(index, batch.length)
        if self._features is not None:
            batch.features = self._read(self._features, batch)

    def _read(self, verifier: CachedVerifier, batch: _Batch) -> Tensor:
        """``(rows, k, channels)`` the verifier's states for the block just committed."""
        begin = batch.length - self.block_size
        lengths = batch.max_lengths.new_full((len(batch.rows),), begin)
        with self.statistics.stopwatch("verify", batch.tokens.device):
            inputs = batch.tokens[:, begin : batch.length]
            _, features = verifier.score(inputs, lengths, batch.length)
        self.statistics.verifier_calls += len(batch.rows)
        return features
