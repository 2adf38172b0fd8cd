"""Drafts that need no training: the source, a text at hand, or what a copy of the verifier writes.

A text is drafted from its beginning. After a rejection the draft goes on where the last committed
tokens stand in it (Sun et al., ACL 2021, "Instantaneous grammatical error correction with shallow
aggressive decoding"); a copy writes on from them instead (ML-SpecQD, arXiv 2503.13565).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn.utils.rnn import pad_sequence

from specdec_plugins.decoding.acceptance.sampling import Proposal
from specdec_plugins.decoding.batch import Batch
from specdec_plugins.decoding.drafting import LONGEST, Drafting
from specdec_plugins.decoding.drafts import ChainDraft, Draft
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.kernels import to_device
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.decoding.step_result import StepResult
from specdec_plugins.decoding.target_prefix import FORCED, FREE, STOPS

#: Key of ``net_input``: ``(rows, n)`` texts to draft, EOS included, then pad.
DRAFTS = "draft_tokens"
#: Numbers of last committed tokens to look for in a text, in this order.
MATCHES = (3, 2, 1)
#: Tokens that a copy may write for each committed one, however often it was wrong.
EARNED = 1 / 16
#: The cost of writing on, beside the tokens: the copy reads the committed ones first.
BEGIN_AGAIN = 2


class TextDrafting(Drafting):
    """Drafts the next tokens of each row's text. Texts are those of the batch as it began."""

    def __init__(self, texts: list[list[int]], batch: Batch, draws: bool) -> None:
        """``draws``: drafts are for sampling."""
        self._texts = texts
        self._draws = draws
        self._probabilities = [[1.0] * len(text) for text in texts]
        #: The index of each text's next token.
        self._next = [0] * len(texts)
        #: The rows whose last committed token is not their text's.
        self._lost = {row for row, length in zip(batch.rows, batch.lengths) if length}

    @classmethod
    def of(cls, pad: int, symbols: Sequence[int], batch: Batch, draws: bool) -> TextDrafting:
        """Return the drafting of the texts that came with the batch, or of its source.

        ``symbols``: the target's number of each of the source's symbols.
        """
        net_input = batch.net_input
        rows = net_input.get(DRAFTS, net_input["src_tokens"]).tolist()
        texts = [[token for token in row if token != pad] for row in rows]
        if DRAFTS not in net_input:
            texts = [[symbols[token] for token in text] for text in texts]
        return cls(texts, batch, draws)

    def draft(self, batch: Batch) -> Draft:
        self._find(batch, [i for i, row in enumerate(batch.rows) if row in self._lost])
        tokens = []
        probabilities = []
        for row, length in zip(batch.rows, batch.draft_lengths):
            begin = self._next[row]
            end = begin if row in self._lost else begin + length
            part = slice(begin, end)
            tokens.append(torch.tensor(self._texts[row][part], dtype=torch.long))
            probabilities.append(torch.tensor(self._probabilities[row][part]))
        counts = list(map(len, tokens))
        if not any(counts):
            return super().draft(batch)
        drafted = pad_sequence(tokens, True).to(batch.device)
        confidences = pad_sequence(probabilities, True).to(batch.device)
        proposal = None
        if self._draws:
            # Drawn from distributions that leave no choice.
            certain = torch.ones_like(confidences)
            proposal = Proposal(drafted[..., None], certain[..., None], certain)
        return ChainDraft(drafted, counts, confidences[..., None], confidences, proposal)

    def _find(self, batch: Batch, lost: list[int]) -> None:
        """Find where the drafts of lost rows go on: of several places, at the nearest."""
        for i in lost:
            row = batch.rows[i]
            last = batch.tokens[i][-MATCHES[0] :]
            text = self._texts[row]
            near = self._next[row]
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
        for row, accepted, committed, last in zip(
            result.rows, result.accepted, result.committed, result.last
        ):
            self._next[row] += committed
            expected = self._texts[row][self._next[row] - 1 : self._next[row]]
            if committed > accepted and expected != [last]:
                self._lost.add(row)


@dataclass
class Credit:
    """Tokens that a copy may write: what the sentence before left to the next one."""

    tokens: float = LONGEST


class WrittenDrafting(TextDrafting):
    """Drafts what a copy of the verifier writes, which after a rejection writes on anew.

    It writes no more than the step drafts, and no more than a row's credit, from which it pays each
    token and each return to the committed ones. An accepted token earns three, and every committed
    one :data:`EARNED`: a copy that is right writes on, and one that always disagrees costs little.
    """

    def __init__(self, batch: Batch, draws: bool, credit: Credit | None = None) -> None:
        """``credit``: is handed on from sentence to sentence; None: drafts are not to depend on
        earlier sentences."""
        super().__init__([[] for _ in batch.rows], batch, draws)
        self._lost = set(batch.rows)
        self._handed_on = Credit() if credit is None else credit
        self._credit = [min(self._handed_on.tokens, length) for length in batch.draft_lengths]
        #: Passes of the copy for the next draft, by row.
        self._passes: dict[int, int] = {}

    def draft(self, batch: Batch) -> Draft:
        self._passes.clear()
        draft = super().draft(batch)
        assert isinstance(draft, ChainDraft)
        return replace(draft, passes=[self._passes.get(row, 0) for row in batch.rows])

    def _find(self, batch: Batch, lost: list[int]) -> None:
        """Let the copy write on from the committed tokens."""
        sizes = []  # the most tokens of each row
        for i, (row, length) in enumerate(zip(batch.rows, batch.draft_lengths)):
            credit = self._credit[row] - self._beginning(batch, i)
            sizes.append(min(length, int(credit)))
        lost = [i for i in lost if sizes[i] > 0]
        if lost:
            self._write(batch, lost, sizes)
            self._lost.difference_update(batch.rows[i] for i in lost)

    def _beginning(self, batch: Batch, index: int) -> int:
        """Return the cost of writing on in a row of the batch, beside the tokens."""
        raise NotImplementedError

    def _write(self, batch: Batch, lost: list[int], sizes: list[int]) -> None:
        """Write the texts of rows of the batch, and take their costs from the credit.

        ``sizes``: the most tokens of each row of the batch.
        """
        raise NotImplementedError

    def observe(self, result: StepResult) -> None:
        super().observe(result)
        for row, accepted, committed, finished in zip(
            result.rows, result.accepted, result.committed, result.finished
        ):
            credit = self._credit[row] + 3 * accepted + EARNED * committed
            self._credit[row] = min(credit, LONGEST)
            if finished:
                self._handed_on.tokens = self._credit[row]
            elif self._next[row] >= len(self._texts[row]):
                self._lost.add(row)


class CopyDrafting(WrittenDrafting):
    """Drafts what a generator without a drafter writes.

    It reads the verifier's keys and values of the source, and thus has no encoder.
    """

    def __init__(
        self,
        copy: SpeculativeGenerator,
        batch: Batch,
        draws: bool,
        credit: Credit | None = None,
    ) -> None:
        """``credit``: see :class:`WrittenDrafting`."""
        super().__init__(batch, draws, credit)
        self._copy = copy

    def _beginning(self, batch: Batch, index: int) -> int:
        return BEGIN_AGAIN if batch.lengths[index] > 0 else 0

    def _write(self, batch: Batch, lost: list[int], sizes: list[int]) -> None:
        assert batch.encoder_out is not None
        assert batch.memory is not None
        copy = self._copy
        rows = [batch.rows[i] for i in lost]
        committed = [torch.tensor(batch.tokens[i], dtype=torch.long) for i in lost]
        some = torch.tensor(rows, device=batch.device)
        net_input = {name: tensor[some] for name, tensor in batch.net_input.items()}
        net_input[FORCED] = pad_sequence(committed, True, copy.pad).to(batch.device)
        net_input[FREE] = to_device([batch.free_from[i] for i in lost], batch.device)
        net_input[STOPS] = to_device([batch.lengths[i] + sizes[i] for i in lost], batch.device)
        encoder_out = copy.model.encoder.reorder_encoder_out(batch.encoder_out, some)
        dtype = next(copy.model.parameters()).dtype
        encoder_out["encoder_out"] = [x.to(dtype) for x in encoder_out["encoder_out"]]
        memory = batch.memory()
        if len(batch.rows) > 1:
            # A tensor of its own, since the copy moves rows within it.
            memory = memory[:, :, torch.tensor(lost, device=batch.device)]
        written = copy.decode(
            {"net_input": net_input},
            copy.controller,
            DecodingStatistics(),
            encoder_out=encoder_out,
            memory=memory.to(dtype),
        )
        for row, (hypothesis,) in zip(rows, written):
            self._texts[row] = hypothesis["tokens"].tolist()
            self._probabilities[row] = hypothesis["positional_scores"].exp().tolist()
            self._next[row] = hypothesis["forced"]
            again = hypothesis["forced"] > 0
            self._credit[row] -= hypothesis["steps"] + BEGIN_AGAIN * again
            self._passes[row] = hypothesis["steps"] + again
