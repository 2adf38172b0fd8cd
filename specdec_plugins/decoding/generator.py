"""Speculative decoding: fairseq's generator contract, and the loop."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specdec_plugins.decoding.acceptance import AcceptanceRule
from specdec_plugins.decoding.drafter import CachedDrafter
from specdec_plugins.decoding.hypothesis import make_hypothesis
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.decoding.trace import TraceRecorder
from specdec_plugins.decoding.verifier import CachedVerifier
from specdec_plugins.models.drafter import Drafter


@dataclass
class _Batch:
    """The rows still being decoded; tensors are on the device, lists on the host."""

    rows: list[int]
    """Where each row stands in the sample."""
    tokens: Tensor
    """``(rows, capacity)`` EOS, then the committed tokens, then whatever."""
    scores: Tensor
    """``(rows, capacity)`` log-probabilities of the committed tokens under the verifier."""
    lengths: Tensor
    """``(rows,)`` committed tokens."""
    max_lengths: Tensor
    """``(rows,)`` most tokens before EOS."""
    new: Tensor
    """``(rows,)`` tokens that the last step committed."""
    features: Tensor | None
    """``(rows, slots, channels)`` the verifier's states for those."""
    host_lengths: list[int]
    host_max_lengths: list[int]
    host_new: list[int]

    def keep(self, kept: list[int]) -> Tensor:
        """Drop all rows but ``kept``; returns them as an index on the device."""
        index = torch.tensor(kept, device=self.tokens.device)
        for name in ("rows", "host_lengths", "host_max_lengths", "host_new"):
            values = getattr(self, name)
            setattr(self, name, [values[i] for i in kept])
        for name in ("tokens", "scores", "lengths", "max_lengths", "new", "features"):
            tensor = getattr(self, name)
            setattr(self, name, None if tensor is None else tensor[index])
        return index


class SpeculativeGenerator:
    """Draft, verify, commit; with strict acceptance the output is the verifier's greedy output.

    Without a drafter every step verifies nothing and commits the verifier's next token: plain
    cached greedy decoding, on the same path.

    The contract is that of fairseq's ``SequenceGenerator``: :meth:`generate` returns, for every
    sentence, a list with one hypothesis: ``tokens`` (EOS included), ``score``,
    ``positional_scores``, ``attention`` and ``alignment`` (empty), ``steps``, and ``accepted``, the
    number of drafted tokens that each step committed; with a recorder also ``trace``, its steps.
    """

    def __init__(
        self,
        verifier: Any,
        drafter: Drafter | None,
        tgt_dict: Any,
        block_size: int | None = None,
        rule: AcceptanceRule | None = None,
        limits: GenerationLimits | None = None,
        recorder: TraceRecorder | None = None,
    ) -> None:
        """``block_size`` is the one that the drafter was trained for, if not given.

        Raises:
            ValueError: a block size that the drafter was not trained for.
            UnsupportedModelError: a verifier that cannot be run exactly.
        """
        self.pad, self.unk, self.eos = tgt_dict.pad(), tgt_dict.unk(), tgt_dict.eos()
        self.limits = limits or GenerationLimits()
        self.rule = rule or AcceptanceRule()
        self.recorder = recorder
        # As a statement: of a model that fairseq has prepared for inference, eval() returns None.
        verifier.eval()
        self.model = verifier
        self.verifier = CachedVerifier(verifier, self.pad)
        self.drafter: CachedDrafter | None = None
        self.block_size = 0
        if drafter is not None:
            block_size = drafter.block_size if block_size is None else block_size
            if not 1 <= block_size <= drafter.block_size:
                raise ValueError(
                    f"--block-size {block_size}: the drafter was trained for blocks of 1 to "
                    f"{drafter.block_size}"
                )
            drafter.attach_verifier(verifier)
            drafter.eval()
            self.drafter = CachedDrafter(drafter)
            self.block_size = block_size
        self.statistics = DecodingStatistics()

    @torch.no_grad()
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
            raise ValueError("prefix tokens and constraints: not supported by speculative decoding")
        start = time.perf_counter()
        batch = self._start(sample["net_input"])
        hypotheses: list[list[dict[str, Any]]] = [[] for _ in batch.rows]
        accepted: list[list[int]] = [[] for _ in batch.rows]
        if self.recorder is not None:
            self.recorder.begin(len(batch.rows))
        while batch.rows:
            draft = self._draft(batch)
            lprobs = self._score(batch, draft)
            finished = self._commit(batch, draft, lprobs, accepted)
            if self.recorder is not None:
                last = batch.tokens.gather(1, batch.lengths[:, None])[:, 0]
                counts = [accepted[row][-1] for row in batch.rows]
                self.recorder.record(batch.rows, draft, last, counts, batch.host_new)
            if any(finished):
                elapsed = time.perf_counter() - start
                self._finish(batch, finished, hypotheses, accepted, elapsed)
        if self.recorder is not None:
            self.recorder.attach(hypotheses)
        self.statistics.total_seconds += time.perf_counter() - start
        return hypotheses

    def _start(self, net_input: dict[str, Tensor]) -> _Batch:
        """Run the encoders and lay out the rows."""
        source = net_input["src_tokens"]
        with self.statistics.stopwatch("encode", source.device):
            encoder_out = self.model.encoder(source, src_lengths=net_input["src_lengths"])
            drafter_out = self.drafter and self.drafter.encode(net_input, encoder_out)
        limits, k, rows = self.limits, self.block_size, len(source)
        longest = limits.max_len_a * source.ne(self.pad).sum(1).double() + limits.max_len_b
        max_lengths = longest.long().clamp(max=self.model.max_decoder_positions() - 1)
        host_max_lengths = max_lengths.tolist()
        if min(host_max_lengths) < limits.min_len:
            raise ValueError(
                f"--min-len {limits.min_len} is above the maximum length {min(host_max_lengths)}"
            )
        # A row's last step may start at its maximum length and write a whole block after it.
        capacity = max(host_max_lengths) + 2 * (k + 1)
        with self.statistics.stopwatch("encode", source.device):
            self.verifier.start(encoder_out, capacity)
            if self.drafter is not None:
                self.drafter.start(drafter_out, capacity)
        tokens = source.new_full((rows, capacity), self.eos)
        zeros = source.new_zeros(rows)
        return _Batch(
            rows=list(range(rows)),
            tokens=tokens,
            scores=torch.zeros(
                rows, capacity, dtype=_score_dtype(encoder_out), device=source.device
            ),
            lengths=zeros,
            max_lengths=max_lengths,
            new=zeros,
            features=None,
            host_lengths=[0] * rows,
            host_max_lengths=host_max_lengths,
            host_new=[0] * rows,
        )

    def _draft(self, batch: _Batch) -> Tensor:
        """``(rows, k)`` drafted tokens; no slots without a drafter."""
        drafter, k = self.drafter, self.block_size
        if drafter is None:
            return batch.tokens[:, :0]
        with self.statistics.stopwatch("draft", batch.tokens.device):
            new = batch.new if drafter.causal else batch.lengths
            window = max(batch.host_new if drafter.causal else batch.host_lengths)
            index = (batch.lengths - new + 1)[:, None] + torch.arange(
                window, device=batch.tokens.device
            )
            return drafter.draft(
                batch.tokens.gather(1, batch.lengths[:, None])[:, 0],
                batch.tokens.gather(1, index),
                new,
                batch.lengths,
                k,
                max(batch.host_lengths) + k,
                None if batch.features is None else batch.features[:, :window],
            )

    def _score(self, batch: _Batch, draft: Tensor) -> Tensor:
        """``(rows, slots + 1, vocab)`` the verifier's log-probabilities, with fairseq's bans.

        Like fairseq's, they are normalised before anything is forbidden.
        """
        limits, slots = self.limits, draft.size(1) + 1
        last = batch.tokens.gather(1, batch.lengths[:, None])
        with self.statistics.stopwatch("verify", draft.device):
            logits, batch.features = self.verifier.score(
                torch.cat([last, draft], dim=1), batch.lengths, max(batch.host_lengths) + slots
            )
        if limits.temperature != 1.0:
            logits = logits / limits.temperature
        lprobs = logits.log_softmax(-1, dtype=batch.scores.dtype)
        lprobs[..., self.pad] = -math.inf
        if limits.unkpen:
            lprobs[..., self.unk] -= limits.unkpen
        # The host knows whether a length limit can matter in this step; mostly none does.
        positions = batch.lengths[:, None] + torch.arange(slots, device=draft.device)
        if min(batch.host_lengths) < limits.min_len:
            lprobs[..., self.eos].masked_fill_(positions < limits.min_len, -math.inf)
        ends = (m - n < slots for m, n in zip(batch.host_max_lengths, batch.host_lengths))
        if any(ends):
            full = (positions >= batch.max_lengths[:, None])[..., None]
            eos = torch.arange(lprobs.size(-1), device=draft.device) == self.eos
            lprobs.masked_fill_(full & ~eos, -math.inf)
        return lprobs

    def _commit(
        self,
        batch: _Batch,
        draft: Tensor,
        lprobs: Tensor,
        accepted: list[list[int]],
    ) -> list[bool]:
        """Accept, commit up to EOS, and learn on the host what must be known: one small copy."""
        slots = torch.arange(draft.size(1) + 1, device=draft.device)
        best = lprobs.argmax(-1)
        matched = self.rule.accepted(lprobs[:, :-1], best[:, :-1], draft)[:, None]
        drafted = torch.cat([draft, best[:, -1:]], dim=1)
        chosen = torch.where(slots < matched, drafted, best)
        ends = (chosen == self.eos) & (slots <= matched)
        last = torch.where(ends, slots, matched).amin(1)
        finished = ends.any(1)
        new = last + 1
        index = batch.lengths[:, None] + 1 + slots
        batch.tokens.scatter_(1, index, chosen)
        batch.scores.scatter_(1, index, lprobs.gather(-1, chosen[..., None])[..., 0])
        batch.lengths = batch.lengths + new
        batch.new = new
        report = torch.stack([new, torch.minimum(matched[:, 0], new), finished.long()])
        host_new, host_accepted, host_finished = report.tolist()
        batch.host_new = host_new
        batch.host_lengths = [n + m for n, m in zip(batch.host_lengths, host_new)]
        for row, count in zip(batch.rows, host_accepted):
            accepted[row].append(count)
        self.statistics.count_step(host_accepted, host_new, draft.size(1))
        return [bool(done) for done in host_finished]

    def _finish(
        self,
        batch: _Batch,
        finished: list[bool],
        hypotheses: list[list[dict[str, Any]]],
        accepted: list[list[int]],
        elapsed: float,
    ) -> None:
        """Hand out the finished rows, and go on with the others."""
        for i, row in enumerate(batch.rows):
            if finished[i]:
                length = batch.host_lengths[i]
                hypotheses[row].append(
                    make_hypothesis(
                        batch.tokens[i, 1 : length + 1],
                        batch.scores[i, 1 : length + 1],
                        accepted[row],
                        self.limits,
                    )
                )
                self.statistics.sentences += 1
                self.statistics.latencies.append(elapsed)
        kept = [i for i, done in enumerate(finished) if not done]
        if not kept:
            batch.rows = []
        else:
            index = batch.keep(kept)
            width = max(batch.host_lengths)
            self.verifier.keep(index, width)
            if self.drafter is not None:
                self.drafter.keep(index, width)


def _score_dtype(encoder_out: dict[str, list[Tensor]]) -> torch.dtype:
    """Scores are float32, as in fairseq, and float64 for a float64 verifier."""
    return torch.promote_types(encoder_out["encoder_out"][0].dtype, torch.float32)
