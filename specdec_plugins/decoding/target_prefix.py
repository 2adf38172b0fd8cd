"""Target prefixes: tokens that the caller forces. They travel in a batch's ``net_input``."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from specdec_plugins.decoding.acceptance import Accepted
from specdec_plugins.decoding.kernels import indices
from specdec_plugins.host.fairseq_types import NetInput, Sample

FORCED, BEGINS = "prefix_tokens", "begin_tokens"
"""Keys of ``net_input``: ``(rows, n)`` forced tokens, then pad; ``(rows,)`` the first tokens."""


def with_prefix(sample: Sample, forced: Tensor | None, begin: int | None) -> Sample:
    """Return the batch with fairseq's ``prefix_tokens`` and ``bos_token``."""
    net_input = dict(sample["net_input"])
    source = net_input["src_tokens"]
    if forced is not None:
        net_input[FORCED] = forced.to(source)
    if begin is not None:
        net_input[BEGINS] = source.new_full((len(source),), begin)
    return {**sample, "net_input": net_input}


@dataclass(frozen=True)
class TargetPrefix:
    """The forced tokens of a batch."""

    begins: list[int]
    """The token before each target's first one: EOS by default."""
    tokens: Tensor
    """``(rows, n)`` forced tokens, then padding."""
    lengths: list[int]
    """The number of them in each row, EOS not counted."""
    free_from: int
    """Positions before this one are in some row's prefix: fairseq has no minimum length there."""
    max_lengths: list[int]
    """The largest number of tokens of each row before EOS."""
    eos: int

    @classmethod
    def of(cls, net_input: NetInput, max_lengths: list[int], pad: int, eos: int) -> TargetPrefix:
        """Return a batch's prefix; a forced EOS reduces ``max_lengths``.

        As in fairseq's search the maximum length wins over a prefix.
        """
        source = net_input["src_tokens"]
        begins = net_input[BEGINS].tolist() if BEGINS in net_input else [eos] * len(source)
        tokens = net_input.get(FORCED, source.new_empty(len(source), 0))
        lengths, limits = [], []
        for row, longest in zip(tokens.tolist(), max_lengths):
            length = next((i for i, token in enumerate(row) if token in (pad, eos)), len(row))
            ends = length < len(row) and row[length] == eos
            if not ends and any(token != pad for token in row[length:]):
                raise ValueError(f"prefix tokens {row}: a token comes after pad; put pad last")
            limits.append(min(longest, length) if ends else longest)
            lengths.append(min(length, longest))
        return cls(begins, tokens[:, : max(lengths)], lengths, tokens.size(1), limits, eos)

    def accepted(self) -> Accepted:
        """Return the forced tokens as what a step commits, none of which was drafted."""
        sources = indices(self.tokens.size(1), self.tokens.device).expand_as(self.tokens)
        none = [0] * len(self.lengths)
        return Accepted(self.tokens, sources, self.lengths, none, none)
