"""A decoder that writes sentences by the compiled function. No fairseq in here."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from specdec_plugins.engines.engine import Engine
from specdec_plugins.engines.step import CachedStep
from specdec_plugins.engines.writer import kernel
from specdec_plugins.engines.writer.trial import runs_here
from specdec_plugins.engines.writer.weights import largest_of, model_of, obstacle
from specdec_plugins.machine import give_back
from specdec_plugins.models.layers import Map, Projection, additive, position_table

logger = logging.getLogger(__name__)

#: Relative errors that are tolerated: 1e-6 as a rule, and 0.06 where attention is so sharp that
#: rounding chooses what it looks at. Those of a wrong kernel are near 1.
TOLERATED = 0.2
#: Tokens of the check, and of its source.
CHECKED = 7


class WriterEngine(Engine):
    """Stands for the writer where engines are asked what they are: it runs no steps."""

    name = "writer"
    stores_weights = True

    def __init__(self) -> None:
        super().__init__("int8")


def build_writer(
    step: CachedStep, pad: int, eos: int, penalties: Mapping[int, float]
) -> Writer | None:
    """Return a writer, or None where it cannot run a decoder here; the arguments are its own."""
    begin = time.perf_counter()
    reason = obstacle(step.decoder)
    if reason is None and not runs_here():
        reason = "its instructions do not run here"
    if reason is not None:
        logger.info("ONNX Runtime writes in the writer's place: %s", reason)
        return None
    try:
        writer = Writer(step, pad, eos, penalties)
    except Exception as error:  # whatever another version of numba raises
        logger.warning("ONNX Runtime writes: the writer failed (%s)", error)
        return None
    logger.info("the writer is ready after %.1f s", time.perf_counter() - begin)
    return writer


class Writer:
    """Writes greedy sentences by a decoder's weights in int8."""

    def __init__(
        self,
        step: CachedStep,
        pad: int,
        eos: int,
        penalties: Mapping[int, float],
    ) -> None:
        """
        Args:
            step: a verifier's, which cannot run any more.
            penalties: is subtracted from the logits of these tokens.

        Raises:
            RuntimeError: what it computes is not what PyTorch does.
        """
        decoder: Any = step.decoder
        with torch.no_grad():
            self.model = model_of(decoder, step.layers, pad, eos, penalties)
            give_back()  # of rounding
            self.layers = len(step.layers)
            self.dim = step.layers[0].head_dim
            bias = decoder.output_projection.bias
            self._bias = None if bias is None else bias.detach().float()
            self._check(step, decoder)

    def sentence(self, memory: Tensor, first: int, length: int) -> Sentence:
        """Return a sentence of at most ``length`` tokens, none of which is written.

        Args:
            memory: ``(layers, 2, heads, source, dim)`` keys and values of the source.
            first: the token before it.
        """
        return Sentence(self, memory, first, length)

    def log_probabilities(
        self, sentence: Sentence, tokens: Tensor, temperature: float = 1.0
    ) -> Tensor:
        """Return ``(n,)`` those of a sentence's ``tokens`` ``(n,)``, with nothing banned."""
        states = torch.from_numpy(sentence.states[: len(tokens)])
        logits = F.linear(states, torch.from_numpy(self.model.output), self._bias)
        # Minus the best, so that no score can become infinity.
        tempered = (logits - logits.amax(1, keepdim=True)) / temperature
        return tempered.log_softmax(1).gather(1, tokens[:, None])[:, 0]

    def scratch(self, length: int) -> kernel.Scratch:
        """Return memory for sentences of a ``length``, target or source."""
        model = self.model
        channels = model.norms.shape[2]
        widest = max(3 * channels, model.inner) + kernel.ROWS
        columns = int(model.products[:, 3].max())
        return kernel.Scratch(
            state=np.zeros(channels, np.float32),
            normed=np.zeros(channels, np.float32),
            result=np.zeros(widest, np.float32),
            attended=np.zeros(channels, np.float32),
            codes=np.zeros(columns + 2 * model.screen.shape[1], np.int8),
            weights=np.zeros(length, np.float32),
            logits=np.zeros(len(model.screen), np.float32),
            states=np.empty((length, model.output.shape[1]), np.float32),
        )

    def _check(self, step: CachedStep, decoder: Any) -> None:
        """Compare states and a choice with PyTorch's on random inputs: a kernel may be wrong.

        PyTorch rounds as the kernel does, or sharp attention would make all of rounding alone.
        """
        for part in [part for layer in step.layers for part in layer.projections]:
            part.run_by(_in_int8(part))
        generator = torch.Generator().manual_seed(0)  # leaves the user's random numbers alone
        shape = self.layers, 2, 1, self.model.heads, CHECKED, self.dim
        memory = torch.randn(shape, generator=generator)
        tokens = torch.randint(len(self.model.embeddings), (1, CHECKED), generator=generator)
        source = memory.to(decoder.output_projection.weight.dtype)
        past = torch.zeros_like(source)
        seen = torch.ones(CHECKED, CHECKED, dtype=torch.bool).tril()
        mask = additive(seen, source.dtype)[None, None]
        positions = torch.arange(CHECKED)[None]
        table = position_table(decoder.embed_positions, CHECKED, decoder.padding_idx)
        _, states, _ = step(past, None, mask, tokens, positions, table, source, None)
        expected = states[0].float()

        sentence = self.sentence(memory[:, :, 0], int(tokens[0, 0]), CHECKED)
        committed = tokens[0, 1:].tolist()
        chosen = []
        for count in range(CHECKED):
            written, _ = sentence.write(committed[:count], 1)
            chosen.append(written[-1])
        state = torch.from_numpy(sentence.states[:CHECKED])
        if not (state - expected).norm() <= TOLERATED * expected.norm():  # NaN, too
            raise RuntimeError("its states are not PyTorch's")

        output = torch.from_numpy(self.model.output)  # (tokens, width)
        biases = torch.from_numpy(self.model.token_biases)[: len(output)]
        logits = state @ output.T + biases
        best = logits.amax(1)
        usual = logits[:, biases.isfinite()].mean(1)
        lost = best - logits[range(CHECKED), chosen]
        if not lost.sum() <= TOLERATED * (best - usual).sum():
            raise RuntimeError("it does not choose the best tokens")


class Sentence:
    """A sentence that is written, and the cache of its tokens."""

    def __init__(self, writer: Writer, memory: Tensor, first: int, length: int) -> None:
        """See :meth:`Writer.sentence`."""
        self._writer = writer
        self._memory: kernel.Floats = memory.float().contiguous().numpy()
        shape = *self._memory.shape[:3], length + 1, writer.dim
        self._cache: kernel.Floats = np.empty(shape, np.float32)
        #: The token before the sentence, and its tokens.
        self._tokens = np.full(length + 1, first, np.int64)
        self._probabilities = np.ones(length + 1, np.float32)
        #: The number of first tokens whose keys and values are cached.
        self._cached = 0
        self._scratch = writer.scratch(max(length + 1, self._memory.shape[3]))
        #: ``(n, width)`` what the output projection reads before each token; later rows are not
        #: filled.
        self.states = self._scratch.states

    def unread(self, committed: Sequence[int]) -> int:
        """Return how many tokens are to be read before there is a token after ``committed``."""
        return len(committed) + 1 - self._common(np.array(committed, np.int64))

    def write(
        self, committed: Sequence[int], count: int, min_len: int = 0
    ) -> tuple[list[int], list[float]]:
        """Return ``committed``, up to ``count`` tokens after them, and all their probabilities.

        ``min_len``: tokens before EOS.
        """
        prefix = np.array(committed, np.int64)
        begin = self._common(prefix)
        known = len(prefix) + 1
        self._tokens[1:known] = prefix
        self._probabilities[:known] = 1
        end = kernel.write(
            self._writer.model,
            self._memory,
            self._cache,
            self._tokens[: known + count],
            self._probabilities,
            begin,
            known,
            min_len + 1,
            self._scratch,
        )
        self._cached = end - 1
        return self._tokens[1:end].tolist(), self._probabilities[1:end].tolist()

    def _common(self, committed: NDArray[np.int64]) -> int:
        """Return how many first tokens are cached and as committed, the last one excepted."""
        count = min(self._cached, len(committed) + 1)
        same = self._tokens[1:count] == committed[: max(count - 1, 0)]
        if not same.all():
            count = int(same.argmin()) + 1
        return min(count, len(committed))


def _in_int8(part: Projection) -> Map:
    """Return a projection whose weights and inputs are rounded to int8, as the writer's are."""
    assert part.weight is not None
    weight = part.weight
    bias = part.bias

    def run(x: Tensor) -> Tensor:
        # Rounded anew in each run: all rounded weights together would take much memory.
        y = F.linear(_rounded(x), _rounded(weight), bias)
        return F.relu(y) if part.relu else y

    return run


def _rounded(x: Tensor) -> Tensor:
    """Return a matrix rounded to int8, with a scale for each row."""
    scales = largest_of(x) / 127
    return (x / scales).round() * scales
