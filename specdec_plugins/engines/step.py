"""Pure steps: what an engine can run. No fairseq in here."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from specdec_plugins.models.layers import DecoderLayerRunner, attend_over

Results = tuple[Tensor, ...]
Run = Callable[..., Results]
"""Called like a step's forward."""


class Step(nn.Module):
    """A function of tensors alone: it keeps no state.

    An input may be None where there is nothing to say; an engine that compiles steps wants those
    that :meth:`example` has.
    """

    transient = 0
    """So many of the first results are to be read before the step is run again; until then they are
    the caller's, to be changed, too."""

    def example(self) -> tuple[Tensor | None, ...]:
        """Inputs of small and different sizes, for an engine that traces what is done with them;
        None for those that there never are."""
        raise NotImplementedError


class CachedStep(Step):
    """A step over keys and values of the tokens before, which it is handed with room for the new
    ones."""

    layers: list[DecoderLayerRunner]
    run: Callable[..., Results]
    """The step, with the self-attention of every layer given first: a sequence of
    :data:`~specdec_plugins.models.layers.Attend`."""
    memory_at: int
    """Which of the inputs is :data:`~specdec_plugins.models.layers.KeysValues`."""

    def example(self, rows: int = 2, tokens: int = 5, others: int = 7) -> tuple[Tensor | None, ...]:
        """Inputs of :meth:`run`: so many new ``tokens`` in so many ``rows``. Every size that is
        neither, and changes from call to call, as that of a source, grows with ``others``."""
        raise NotImplementedError

    def forward(self, cached: Tensor, mask: Tensor | None, *inputs: Tensor | None) -> Results:
        """
        Args:
            cached: ``(layers, rows, width + slots, 2, heads, dim)`` keys and values of the tokens
                before, then room, into which those of the new tokens are written.
            mask: to be added to the scores of self-attention.
            inputs: those of :meth:`run`.
        """
        return self.run([attend_over(keys_values, mask) for keys_values in cached], *inputs)
