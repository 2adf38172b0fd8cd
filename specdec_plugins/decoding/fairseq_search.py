"""fairseq's own search over our engines: a model that answers it in place of fairseq's."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from fairseq.sequence_generator import EnsembleModel
from torch import Tensor

from specdec_plugins.decoding.drafts import ChainDraft
from specdec_plugins.decoding.kernels import to_device
from specdec_plugins.decoding.steps.verifier import CachedVerifier
from specdec_plugins.engines.engine import Engine
from specdec_plugins.engines.step import Results
from specdec_plugins.files.errors import EngineError
from specdec_plugins.host.fairseq_types import EncoderOut, NetInput

if TYPE_CHECKING:
    from fairseq.models.transformer import TransformerModelBase

logger = logging.getLogger(__name__)


class EngineModel(EnsembleModel):
    """Verifiers whose steps an engine runs, as fairseq's ``SequenceGenerator`` asks them.

    fairseq's search keeps a row for each hypothesis, and asks for all of them. The verifiers run
    those that differ and can still win: a row for each sentence at first, and none of score minus
    infinity, such as all but one while a prefix is forced.
    """

    def __init__(
        self, models: Sequence[TransformerModelBase], padding: int, engine: Engine
    ) -> None:
        """Prepare the models' steps.

        Raises:
            EngineError: a model that cannot be run exactly.
        """
        super().__init__(models)
        #: fairseq then reorders encoder outputs alone, which it does by the same order.
        self.has_incremental = False
        if engine.recorder is not None:
            engine.recorder.fall_back("beams change the rows of a batch at every step")
        self._engine = engine
        self._verifiers = [CachedVerifier(model, padding, engine) for model in models]

    def forward_encoder(self, net_input: NetInput) -> list[EncoderOut]:
        """Read a batch of sources; the verifiers keep what fairseq would hand on."""
        source = net_input["src_tokens"]
        with self._engine.running():
            for verifier in self._verifiers:
                out = verifier.encode(source, net_input["src_lengths"])
                verifier.begin(out, int(self.max_decoder_positions()))
        #: The sentence of each of the verifiers' rows.
        self._sentences = list(range(len(source)))
        #: ``(rows, vocab)`` the last answer, in which fairseq writes what it bans.
        self._answer: Tensor | None = None
        return []

    def reorder_encoder_out(self, encoder_outs: list[EncoderOut], new_order: Tensor) -> object:
        """Note which row each of the next step continues; before the first, which sentence."""
        self._order = new_order
        return encoder_outs

    def forward_decoder(
        self,
        tokens: Tensor,
        _encoder_outs: object,
        incremental_states: object,
        temperature: float = 1.0,
    ) -> tuple[Tensor, None]:
        """Return log-probabilities ``(rows, vocab)`` of the next token after ``tokens`` ``(rows,
        length)``, the first of which begins targets."""
        length = tokens.size(1) - 1
        last = tokens[:, -1]
        if self._answer is None:
            #: The verifiers' row of each of fairseq's; -1: it is not run.
            self._rows: list[int] = self._order.tolist()
        else:
            chosen = self._answer[self._order, last]
            self._follow(chosen.ne(-math.inf).tolist(), length)
        count = len(self._sentences)
        token_of = dict(zip(self._rows, last.tolist()))
        asked = [token_of[row] for row in range(count)]
        draft = ChainDraft.empty(count, tokens.device)
        rows = to_device(self._rows, tokens.device)
        with self._engine.running():
            answers = [
                _probabilities(
                    model,
                    verifier.score(asked, draft, [length] * count),
                    rows.clamp(min=0),
                    temperature,
                )
                for model, verifier in zip(self.models, self._verifiers)
            ]
        answer = answers[0]
        if len(answers) > 1:
            answer = torch.stack(answers).logsumexp(0) - math.log(len(answers))
        if min(self._rows) < 0:
            answer[rows < 0] = -math.inf
        self._answer = answer
        return answer, None

    def _follow(self, goes_on: list[bool], length: int) -> None:
        """Let the verifiers go on with what fairseq has chosen: True for rows that can still win,
        which have ``length`` tokens."""
        if not any(goes_on):
            goes_on[0] = True  # fairseq asks on, though nothing can win any more
        parents = [
            max(self._rows[row], 0) for row, going in zip(self._order.tolist(), goes_on) if going
        ]
        indices = list(range(len(parents)))
        if len(parents) == len(self._sentences):
            indices = rows_of_children(parents)
        rows = [parent for _, parent in sorted(zip(indices, parents))]
        sentences = [self._sentences[row] for row in rows]
        sources = rows
        if sentences == self._sentences:
            sources = list(range(len(rows)))  # Rows of a sentence have read the same.
        for verifier in self._verifiers:
            verifier.select(rows, length, sources)
        self._sentences = sentences
        remaining = iter(indices)
        self._rows = [next(remaining) if going else -1 for going in goes_on]


def engine_model(
    models: list[TransformerModelBase], engine: Engine
) -> EngineModel | list[TransformerModelBase]:
    """Return what fairseq's search asks: the models as an engine runs them, or, with a warning,
    as they are where it cannot."""
    try:
        return EngineModel(models, models[0].decoder.dictionary.pad(), engine)
    except EngineError as error:
        logger.warning("%s; fairseq runs it", error)
        return models


def _probabilities(
    model: TransformerModelBase, results: Results, rows: Tensor, temperature: float
) -> Tensor:
    """Return log-probabilities ``(n, vocab)`` of some ``rows`` ``(n,)`` of a verifier's results, as
    fairseq computes them, in float32."""
    logits, _, normalisers = results
    scores = logits[:, -1].index_select(0, rows)
    if temperature == 1 and scores.dtype == torch.float32:
        return scores.sub_(normalisers.index_select(0, rows))
    return model.get_normalized_probs((scores.div_(temperature), None), log_probs=True)


def rows_of_children(parents: list[int]) -> list[int]:
    """Return an index for each child of as many rows: its parent's for the first child of each.

    For the parents 0, 0, 1, 3 of rows 0 to 3, the indices are 0, 2, 1, 3: one row moves.
    """
    first = {parent: child for child, parent in reversed(list(enumerate(parents)))}
    free = iter([index for index in range(len(parents)) if index not in first])
    return [
        parent if first[parent] == child else next(free) for child, parent in enumerate(parents)
    ]
