"""Drafts that the writer writes: an int8 copy of the verifier, a sentence a call."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from specdec_plugins.decoding.batch import Batch
from specdec_plugins.decoding.drafting import DraftSource
from specdec_plugins.decoding.limits import TokenBans
from specdec_plugins.decoding.steps.verifier import VerifierStep
from specdec_plugins.decoding.target_prefix import BEGINS, row_values
from specdec_plugins.decoding.text_drafting import Credit, WrittenDrafting
from specdec_plugins.engines.writer.writer import Sentence, Writer, WriterEngine, build_writer

if TYPE_CHECKING:
    from fairseq.models.transformer import TransformerModelBase


def writer_source(
    verifier: TransformerModelBase, bans: TokenBans, credit: Credit | None
) -> DraftSource | None:
    """Return drafts of the verifier's int8 copy by the writer; None where it cannot run."""
    penalties = {bans.unk: bans.limits.unkpen}
    writer = build_writer(VerifierStep(verifier), bans.pad, bans.eos, penalties)
    if writer is None:
        return None
    return DraftSource(partial(WriterDrafting, writer, bans, credit=credit), WriterEngine())


class WriterDrafting(WrittenDrafting):
    """Drafts what the writer writes of each row. A pass of it reads one token."""

    def __init__(
        self,
        writer: Writer,
        bans: TokenBans,
        batch: Batch,
        draws: bool,
        credit: Credit | None = None,
    ) -> None:
        """``credit``: see :class:`WrittenDrafting`."""
        super().__init__(batch, draws, credit)
        self._min_len = bans.limits.min_len
        first = row_values(batch.net_input, BEGINS, [bans.eos] * len(batch.rows))
        assert batch.encoder_out is not None
        assert batch.memory is not None
        self._sentences = list[Sentence]()
        for row, token in enumerate(first):
            memory = batch.memory()[:, :, row]  # (layers, 2, heads, source, dim)
            for padding in batch.encoder_out["encoder_padding_mask"]:
                memory = memory[..., ~padding[row], :]
            self._sentences.append(writer.sentence(memory, token, batch.max_lengths[row]))

    def _beginning(self, batch: Batch, index: int) -> int:
        return self._sentences[batch.rows[index]].unread(batch.tokens[index]) - 1

    def _write(self, batch: Batch, lost: list[int], sizes: list[int]) -> None:
        for i in lost:
            row = batch.rows[i]
            committed = batch.tokens[i]
            sentence = self._sentences[row]
            unread = sentence.unread(committed)
            text, probabilities = sentence.write(committed, sizes[i], self._min_len)
            self._texts[row] = text
            self._probabilities[row] = probabilities
            self._next[row] = len(committed)
            passes = len(text) - len(committed) + unread - 1
            self._passes[row] = passes
            self._credit[row] -= passes
