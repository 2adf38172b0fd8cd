"""Speculative decoding: fairseq's generator contract, and the loop."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specdec_plugins.decoding.acceptance import AcceptanceRule
from specdec_plugins.decoding.batch import Batch, StepReport
from specdec_plugins.decoding.controllers import (
    Bounds,
    Constant,
    Controller,
    ControllerOptions,
    Draft,
    Head,
    build_controller,
)
from specdec_plugins.decoding.draft_tree import DraftTree
from specdec_plugins.decoding.drafter import CachedDrafter
from specdec_plugins.decoding.hypothesis import Results
from specdec_plugins.decoding.indices import indices
from specdec_plugins.decoding.limits import GenerationLimits, TokenBans
from specdec_plugins.decoding.probabilities import log_probabilities
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.decoding.trace import TraceRecorder
from specdec_plugins.decoding.tree_source import TreeSource, prepare_trees
from specdec_plugins.decoding.verdict import Verdict, judge
from specdec_plugins.decoding.verifier import CachedVerifier
from specdec_plugins.models.drafter import Drafter

HOST = torch.device("cpu")


class SpeculativeGenerator:
    """Draft, verify, commit; with strict acceptance the output is the verifier's greedy output,
    with sampling it is distributed as what the verifier samples.

    Without a drafter every step verifies nothing and commits the verifier's next token: plain
    cached greedy decoding or sampling, on the same path.

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
        controller: ControllerOptions | None = None,
        head: Head | None = None,
    ) -> None:
        """``block_size`` is the one that the drafter was trained for, if not given.

        Args:
            controller: which one and its settings; the default drafts and verifies whole blocks.
            head: the acceptance head of the controllers that use one.

        Raises:
            ValueError: a block size that the drafter was not trained for, or a controller that does
                not go with it.
            UnsupportedModelError: a verifier that cannot be run exactly.
        """
        self.pad, self.eos = tgt_dict.pad(), tgt_dict.eos()
        self.limits = limits or GenerationLimits()
        self._bans = TokenBans(self.limits, self.pad, tgt_dict.unk(), self.eos)
        self.rule = rule or AcceptanceRule()
        self._propose = self.rule.proposer(self.limits.temperature)
        self.recorder = recorder
        # As a statement: of a model that fairseq has prepared for inference, eval() returns None.
        verifier.eval()
        self.model = verifier
        self.positions = int(verifier.max_decoder_positions())
        self.limits.check_positions(self.positions)
        self.verifier = CachedVerifier(verifier, self.pad)
        self.drafter: CachedDrafter | None = None
        self.block_size = 0
        self.controller: Controller = Constant(Bounds(0, 0))
        options = controller or ControllerOptions()
        if drafter is not None and options.drafts:
            self._use(drafter, drafter.block_size if block_size is None else block_size)
            self.controller = build_controller(options, self.block_size, head)
            if self.rule.sampling and self.controller.weighs_all:
                raise ValueError(
                    f"--controller {options.controller}: looks at drafted tokens that are then not "
                    "verified, which --sampling must not depend on; use tree, constant, or "
                    "cost-aware with --survival tree or averages"
                )
            if self.controller.depth:
                prepare_trees()
        self.statistics = DecodingStatistics()

    def _use(self, drafter: Drafter, block_size: int) -> None:
        if not 1 <= block_size <= drafter.block_size:
            raise ValueError(
                f"--block-size {block_size}: the drafter was trained for blocks of 1 to "
                f"{drafter.block_size}"
            )
        drafter.attach_verifier(self.model)
        drafter.eval()
        self.drafter = CachedDrafter(drafter)
        self.block_size = block_size

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
            raise ValueError("prefix tokens and constraints: not supported by speculative decoding")
        self.controller.prepare(self, sample)
        rows = len(sample["net_input"]["src_tokens"])
        results = Results(rows, self.limits, self.statistics, bonus=1)
        batch = self._start(sample["net_input"])
        if self.recorder is not None:
            self.recorder.begin(len(batch.rows))
        while batch.rows:
            draft = self._draft(batch)
            inputs = self._cut(batch, draft)
            lprobs, states = self._score(batch, inputs, draft.tree)
            report = self._commit(batch, inputs, draft, lprobs, states)
            results.step(batch.rows, report.accepted)
            if self.recorder is not None:
                self.recorder.record(batch.rows, draft, batch.last, report)
            if any(report.finished):
                self._finish(batch, report.finished, results)
        if self.recorder is not None:
            self.recorder.attach(results.hypotheses)
        return results.end()

    def _start(self, net_input: dict[str, Tensor]) -> Batch:
        """Run the encoders and lay out the rows."""
        source = net_input["src_tokens"]
        with self.statistics.stopwatch("encode", source.device):
            encoder_out = self.verifier.encode(source, net_input["src_lengths"])
        limits, rows = self.limits, len(source)
        longest = limits.longest(source.ne(self.pad).sum(1))
        max_lengths = longest.clamp(max=self.positions - 1).long()
        zeros = source.new_zeros(rows)
        with self.statistics.stopwatch("control", HOST):
            draft_lengths = self.controller.start(zeros)
        asked = [max_lengths] if draft_lengths is None else [max_lengths, draft_lengths]
        host_max_lengths, *more = torch.stack(asked).tolist()
        host_draft_lengths = more[0] if more else [self.controller.length] * rows
        if not (self.controller.resumes or any(host_draft_lengths)):
            draft_lengths = None
        if min(host_max_lengths) < limits.min_len:
            shortest = int(source.ne(self.pad).sum(1).min())
            raise ValueError(limits.fault(shortest, self.positions))
        # A row's last step may start at its maximum length and write a whole draft after it.
        most = max(self.block_size, self.controller.bounds.most)
        capacity = max(host_max_lengths) + 2 * (most + 1)
        with self.statistics.stopwatch("encode", source.device):
            self.verifier.start(encoder_out, capacity)
        return Batch.begin(
            net_input,
            encoder_out,
            self.eos,
            capacity,
            (max_lengths, host_max_lengths),
            (draft_lengths, host_draft_lengths),
        )

    def _draft(self, batch: Batch) -> Draft:
        """As many slots for every row as the longest draft is to have; with none, no pass is made,
        and neither where what is left of the last draft will do.

        What is not cached of a row's prefix is cached now: more than its last step committed, where
        steps without a pass came before.
        """
        drafter, slots = self.drafter, max(batch.host_draft_lengths)
        if drafter is None or not slots:
            return Draft(batch.tokens[:, :0])
        if self.controller.depth:
            return self._draft_trees(drafter, batch, slots)
        self._start_drafter(drafter, batch)
        with self.statistics.stopwatch("draft", batch.tokens.device):
            return drafter.draft(
                batch.prefixes(drafter.causal, slots),
                batch.last,
                slots,
                self.controller.reads_probabilities,
                self._propose,
            )

    def _draft_trees(self, drafter: CachedDrafter, batch: Batch, nodes: int) -> Draft:
        """Trees of so many nodes: of some rows of what is left of their last draft, of the others
        of a new one."""
        source, rows = batch.source, list(range(len(batch.rows)))
        if source is not None:
            promised = source.promises(nodes)
            with self.statistics.stopwatch("control", HOST):
                anew = self.controller.redrafts(promised)
            rows = [row for row in rows if anew[row]]
        if rows:
            self._start_drafter(drafter, batch)
        with self.statistics.stopwatch("draft", batch.tokens.device):
            if rows:
                source = self._renew(drafter, batch, min(nodes, self.controller.depth), rows)
            assert source is not None
            tokens, tree = source.grow(nodes)
        whole = len(rows) == len(batch.rows)
        left_over = None if whole else [not new for new in anew]
        return Draft(tokens, tree=tree, source=source, left_over=left_over)

    def _renew(
        self, drafter: CachedDrafter, batch: Batch, slots: int, rows: list[int]
    ) -> TreeSource:
        """A new draft of some ``rows``, with what the batch has of the others."""
        some = rows if len(rows) < len(batch.rows) else None
        prefixes = batch.prefixes(drafter.causal, slots, some)
        last = batch.last if prefixes.rows is None else batch.last[prefixes.rows]
        drafted = drafter.trees(prefixes, last, slots)
        if some is None or batch.source is None:
            return drafted
        batch.source.replace(rows, drafted)
        return batch.source

    def _start_drafter(self, drafter: CachedDrafter, batch: Batch) -> None:
        """The drafter reads the source before a batch's first draft, which may be late or never."""
        if batch.drafter_input is None:
            return
        net_input, encoder_out = batch.drafter_input
        with self.statistics.stopwatch("encode", batch.tokens.device):
            drafter.start(drafter.encode(net_input, encoder_out), batch.tokens.size(1))
            if len(batch.rows) < len(net_input["src_tokens"]):
                drafter.keep(torch.tensor(batch.rows, device=batch.tokens.device), 0)
        batch.drafter_input = None

    def _cut(self, batch: Batch, draft: Draft) -> Tensor:
        """``(rows, slots + 1)`` what the verifier reads: the last token, then as much of the draft
        as the row that verifies most.
        """
        width = draft.tokens.size(1)
        batch.verify_lengths = None
        if width and self.controller.cuts:
            drafted = batch.draft_lengths
            if drafted is None:
                drafted = torch.full_like(batch.lengths, width)
            with self.statistics.stopwatch("control", HOST):
                batch.verify_lengths = self.controller.verify_lengths(draft, drafted)
            if draft.proposal is not None:
                # No drawn token is left out for what it is: the one that was cut before is in.
                batch.verify_lengths = torch.minimum(batch.verify_lengths + 1, drafted)
            width = int(batch.verify_lengths.amax())
        elif min(batch.host_draft_lengths) < width:
            batch.verify_lengths = batch.draft_lengths
        return torch.cat([batch.last[:, None], draft.tokens[:, :width]], dim=1)

    def _score(self, batch: Batch, inputs: Tensor, tree: DraftTree | None) -> tuple[Tensor, Tensor]:
        """``(rows, slots + 1, vocab)`` the verifier's log-probabilities, with fairseq's bans, and
        ``(rows, slots + 1, channels)`` its states.

        Like fairseq's, they are normalised before anything is forbidden.
        """
        slots = inputs.size(1)
        with self.statistics.stopwatch("verify", inputs.device):
            logits, states = self.verifier.score(
                inputs, batch.lengths, max(batch.host_lengths) + slots, tree
            )
        depths = indices(slots, inputs.device) if tree is None else tree.depths
        lprobs = log_probabilities(logits, self.limits.temperature, batch.scores.dtype)
        room = batch.room(slots)
        self._bans.apply(
            lprobs,
            batch.lengths[:, None] + depths,
            None if room is None else batch.max_lengths,
            early=min(batch.host_lengths) < self.limits.min_len,
        )
        return lprobs, states

    def _commit(
        self, batch: Batch, inputs: Tensor, draft: Draft, lprobs: Tensor, states: Tensor
    ) -> StepReport:
        """Accept, commit up to EOS, and learn on the host what must be known: one small copy, or
        of a tree more."""
        verdict = judge(
            self.rule,
            lprobs,
            inputs,
            batch.verify_lengths,
            self.eos,
            draft.tree,
            draft.proposal,
            batch.room(inputs.size(1)),
        )
        slots = indices(verdict.tokens.size(1), inputs.device)
        positions = batch.lengths[:, None] + slots
        if verdict.path is not None and not verdict.path.straight:
            # From here on the way that was accepted is a draft like any other.
            self.verifier.move(batch.lengths[:, None] + verdict.sources, positions)
            sources = verdict.sources[..., None].expand(-1, -1, states.size(-1))
            states = states.gather(1, sources)
        if self.drafter is not None and self.drafter.reads_features and batch.drafts:
            batch.remember(states[:, : len(slots)], positions)
        index = positions + 1
        batch.tokens.scatter_(1, index, verdict.tokens)
        scored = verdict.sources * lprobs.size(-1) + verdict.tokens
        batch.scores.scatter_(1, index, lprobs.flatten(1).gather(1, scored))
        batch.lengths = batch.lengths + verdict.new
        return self._report(batch, draft, verdict)

    def _report(self, batch: Batch, draft: Draft, verdict: Verdict) -> StepReport:
        """Tell the controller, the statistics and the batch what was committed."""
        asked = [verdict.new, verdict.accepted, verdict.finished]
        drafted_lengths = batch.host_draft_lengths
        drew = draft.drew
        left_over = draft.tree is not None and not any(drew)
        if batch.verify_lengths is not None:
            asked.append(batch.verify_lengths)
        if batch.draft_lengths is not None:
            with self.statistics.stopwatch("control", HOST):
                lengths = self.controller.draft_lengths(batch.outcome(verdict, left_over))
            assert lengths is not None
            asked.append(lengths)
        known = verdict.known or []
        if len(known) < len(asked):
            known = known + torch.stack(asked[len(known) :]).tolist()
        host_new, accepted, finished, *more = known
        verified = drafted_lengths if batch.verify_lengths is None else more[0]
        if batch.draft_lengths is not None:
            batch.draft_lengths, batch.host_draft_lengths = asked[-1], more[-1]
        batch.source = draft.source
        if draft.source is not None and verdict.path is not None:
            left = draft.source.advance(accepted, verdict.path.last)
            batch.source = draft.source if left else None
        batch.move_on(verdict.new, host_new, drew)
        self.statistics.count_step(accepted, host_new, drafted_lengths, verified, sum(drew))
        done = [bool(value) for value in finished]
        return StepReport(drafted_lengths, verified, accepted, host_new, done, verdict.path)

    def _finish(self, batch: Batch, finished: list[bool], results: Results) -> None:
        """Hand out the finished rows, and go on with the others."""
        for i, row in enumerate(batch.rows):
            if finished[i]:
                end = batch.host_lengths[i] + 1
                results.finish(row, batch.tokens[i, 1:end], batch.scores[i, 1:end])
        kept = [i for i, done in enumerate(finished) if not done]
        if not kept:
            batch.rows = []
        else:
            index = batch.keep(kept)
            width = max(batch.host_lengths)
            self.verifier.keep(index, width)
            self.controller.keep(index)
            if batch.draft_lengths is None and batch.drafts:
                batch.host_draft_lengths = [self.controller.length] * len(kept)
            if self.drafter is not None and batch.drafter_input is None:
                self.drafter.keep(index, width)
