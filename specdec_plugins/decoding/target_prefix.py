"""Target prefixes: tokens that the caller forces. They travel in a batch's ``net_input``."""

from __future__ import annotations

from torch import Tensor

from specdec_plugins.host.fairseq_types import NetInput, Sample

#: Key of ``net_input``: ``(rows, n)`` forced tokens, then pad.
FORCED = "prefix_tokens"
#: Key of ``net_input``: ``(rows,)`` the first tokens.
BEGINS = "begin_tokens"
#: Key of ``net_input``: ``(rows,)`` positions before which there is no minimum length; by default
#: the width of all prefixes, as in fairseq's search.
FREE = "free_from"
#: Key of ``net_input``: ``(rows,)`` lengths at which rows end, maybe without an EOS.
STOPS = "stop_lengths"


def with_prefix(sample: Sample, forced: Tensor | None, begin: int | None) -> Sample:
    """Return the batch with fairseq's ``prefix_tokens`` and ``bos_token``."""
    net_input = dict(sample["net_input"])
    source = net_input["src_tokens"]
    if forced is not None:
        net_input[FORCED] = forced.to(source)
    if begin is not None:
        net_input[BEGINS] = source.new_full((len(source),), begin)
    return {**sample, "net_input": net_input}


def row_values(net_input: NetInput, key: str, default: list[int]) -> list[int]:
    """Return the values of rows that a batch came with; if it has none, the ``default``."""
    return net_input[key].tolist() if key in net_input else default


def read_prefix(
    net_input: NetInput, max_lengths: list[int], pad: int, eos: int
) -> tuple[Tensor, list[int], list[int]]:
    """Return the forced tokens ``(rows, n)``, their number in each row, EOS not counted, and the
    maximum lengths, which a forced EOS reduces.

    As in fairseq's search the maximum length wins over a prefix.
    """
    source = net_input["src_tokens"]
    tokens = net_input.get(FORCED, source.new_empty(len(source), 0))
    lengths = []
    limits = []
    for row, longest in zip(tokens.tolist(), max_lengths):
        length = next((i for i, token in enumerate(row) if token in (pad, eos)), len(row))
        ends = length < len(row) and row[length] == eos
        if not ends and any(token != pad for token in row[length:]):
            raise ValueError(f"prefix tokens {row}: a token comes after pad; put pad last")
        limits.append(min(longest, length) if ends else longest)
        lengths.append(min(length, longest))
    return tokens, lengths, limits
