"""Drafts that need no training: the source, a text at hand, or what a copy of the verifier writes.

A text is drafted from its beginning. After a rejection the draft goes on where the last committed
tokens stand in it (Sun et al., ACL 2021, "Instantaneous grammatical error correction with shallow
aggressive decoding"); a copy writes on from them instead (ML-SpecQD, arXiv 2503.13565).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.utils.rnn import pad_sequence

from specdec_plugins.decoding.acceptance.sampling import Proposal
from specdec_plugins.decoding.batch import Batch
from specdec_plugins.decoding.drafting import Drafting, DraftSource
from specdec_plugins.decoding.drafts import ChainDraft, Draft, DrawnDraft
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.kernels import to_device
from specdec_plugins.decoding.statistics import DecodingStatistics, Stopwatch
from specdec_plugins.decoding.step_result import StepResult
from specdec_plugins.decoding.target_prefix import FORCED
from specdec_plugins.host.fairseq_types import NetInput

DRAFTS = "draft_tokens"
"""Key of ``net_input``: ``(rows, n)`` texts to draft, EOS included, then pad."""
LONGEST = 64
"""The block size of texts: the largest number of tokens that a step drafts."""
MATCHES = (3, 2, 1)
"""Numbers of last committed tokens to look for in a text, in this order."""


class TextDrafter(DraftSource):
    """Drafts the source, or a text that is given with each sentence."""

    def __init__(self, pad: int, symbols: Sequence[int]) -> None:
        """
        Args:
            pad: in both dictionaries.
            symbols: the target's number of each of the source's symbols.
        """
        self.pad, self._symbols = pad, symbols

    def drafting(self, net_input: NetInput, stopwatch: Stopwatch, draws: bool) -> TextDrafting:
        rows = net_input.get(DRAFTS, net_input["src_tokens"]).tolist()
        texts = [[token for token in row if token != self.pad] for row in rows]
        if DRAFTS not in net_input:
            texts = [[self._symbols[token] for token in text] for text in texts]
        return TextDrafting(texts, stopwatch, draws)


class CopyDrafter(DraftSource):
    """Drafts what the verifier's copy in a lower precision writes."""

    def __init__(self, copy: SpeculativeGenerator) -> None:
        """``copy``: a generator without a drafter."""
        self.copy, self.engine = copy, copy.engines.verifier

    def drafting(self, net_input: NetInput, stopwatch: Stopwatch, draws: bool) -> TextDrafting:
        return CopyDrafting(self.copy, net_input, stopwatch, draws)


class TextDrafting(Drafting):
    """Drafts the next tokens of each row's text. Rows are those of the batch as it began."""

    def __init__(self, texts: list[list[int]], stopwatch: Stopwatch, draws: bool) -> None:
        self._texts, self._stopwatch, self._draws = texts, stopwatch, draws
        self._probabilities = [[1.0] * len(text) for text in texts]
        self._next = [0] * len(texts)
        """The index of each text's next token."""
        self._lost: set[int] | None = None
        """The rows whose last committed token is not their text's; None before the first draft."""

    def draft(self, batch: Batch) -> Draft:
        if self._lost is None:
            forced = zip(batch.rows, batch.lengths)
            self._lost = {row for row, length in forced if length}
        self._find(batch, [i for i, row in enumerate(batch.rows) if row in self._lost])
        with self._stopwatch("draft", batch.device):
            tokens, probabilities, counts = [], [], []
            for row, length in zip(batch.rows, batch.draft_lengths):
                begin = self._next[row]
                part = slice(begin, begin + (0 if row in self._lost else length))
                tokens.append(self._texts[row][part])
                probabilities.append(self._probabilities[row][part])
                counts.append(len(tokens[-1]))
            width = max(counts)
            if not width:
                return super().draft(batch)
            filled = [row + [0] * (width - len(row)) for row in tokens]
            confidences = torch.tensor(
                [row + [0.0] * (width - len(row)) for row in probabilities], device=batch.device
            )
            lengths = to_device(counts, batch.device)
            fields = counts, lengths, confidences[..., None], confidences
            chain = ChainDraft(to_device(filled, batch.device), *fields)
            if not self._draws:
                return chain
            # Drawn from distributions that leave no choice.
            certain = torch.ones_like(confidences)
            proposal = Proposal(chain.tokens[..., None], certain[..., None], certain)
            return DrawnDraft(**vars(chain), proposal=proposal)

    def _find(self, batch: Batch, lost: list[int]) -> None:
        """Find where the drafts of lost rows go on: of several places, at the nearest.

        Args:
            lost: rows as they are now.
        """
        assert self._lost is not None
        for i in lost:
            row, last = batch.rows[i], batch.tokens[i][-MATCHES[0] :]
            text, near = self._texts[row], self._next[row]
            for count in MATCHES:
                matches = [
                    end
                    for end in range(count, len(text))
                    if text[end - count : end] == last[-count:]
                ]
                if matches:
                    self._next[row] = min(matches, key=lambda end: abs(end - near))
                    self._lost.remove(row)
                    break

    def observe(self, result: StepResult) -> None:
        assert self._lost is not None
        counts = zip(result.rows, result.accepted, result.committed, result.last)
        for row, accepted, committed, last in counts:
            self._next[row] += committed
            expected = self._texts[row][self._next[row] - 1 : self._next[row]]
            if committed > accepted and expected != [last]:
                self._lost.add(row)


class CopyDrafting(TextDrafting):
    """Drafts what a copy of the verifier writes, which after a rejection writes on anew."""

    def __init__(
        self, copy: SpeculativeGenerator, net_input: NetInput, stopwatch: Stopwatch, draws: bool
    ) -> None:
        super().__init__([[] for _ in net_input["src_tokens"]], stopwatch, draws)
        self._copy, self._net_input, self._begun = copy, net_input, False

    def _find(self, batch: Batch, lost: list[int]) -> None:
        """Let the copy write on from the committed tokens; it reads the verifier's encoder."""
        assert self._lost is not None
        assert batch.encoder_out is not None
        if not self._begun:
            self._begun, lost = True, list(range(len(batch.rows)))
        if not lost:
            return
        copy, rows = self._copy, [batch.rows[i] for i in lost]
        committed = [torch.tensor(batch.tokens[i], dtype=torch.long) for i in lost]
        some = torch.tensor(rows, device=batch.device)
        net_input = {name: tensor[some] for name, tensor in self._net_input.items()}
        net_input[FORCED] = pad_sequence(committed, True, copy.pad).to(batch.device)
        options = copy.controller, DecodingStatistics()
        with self._stopwatch("draft", batch.device):
            encoder_out = copy.rows_of(batch.encoder_out, rows)
            written = copy.decode({"net_input": net_input}, *options, encoder_out=encoder_out)
        for row, (hypothesis,) in zip(rows, written):
            self._texts[row] = hypothesis["tokens"].tolist()
            self._probabilities[row] = hypothesis["positional_scores"].exp().tolist()
            self._next[row] = hypothesis["forced"]
        self._lost.difference_update(rows)
