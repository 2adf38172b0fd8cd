"""The beginning of a chain of drafted tokens that is accepted."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.decoding.acceptance.verification import Accepted
from specdec_plugins.decoding.arrays import Bools, Ints
from specdec_plugins.decoding.compiled import compiled
from specdec_plugins.decoding.indices import indices


def up_to_eos(
    drafted: Tensor,
    good: Tensor,
    own: Tensor,
    lengths: Tensor,
    eos: int,
    room: list[int] | None,
) -> Accepted:
    """The longest good beginning of a draft, no further than EOS, then the verifier's own token.

    It is found on the host, by compiled code, as the way through a tree is.

    Args:
        drafted: ``(rows, slots)`` tokens, each following the one before it.
        good: ``(rows, slots)`` whether each may be committed after those before it.
        own: ``(rows, slots + 1)`` the verifier's token at every place, or ``(rows, 1)`` at the only
            one that counts.
        lengths: ``(rows,)`` how many of the tokens are each row's.
        room: how many tokens each row may have before an EOS is forced on it, which is then not the
            draft's; None where no draft reaches as far.
    """
    rows, slots = drafted.shape
    tokens, goods, owns, looked_at = (
        np.ascontiguousarray(x.cpu().numpy()) for x in (drafted, good, own, lengths)
    )
    most = np.full(rows, slots) if room is None else np.array(room)
    chosen, counts = _up_to_eos(tokens, goods, owns, looked_at, eos, most)
    on_device = [torch.from_numpy(array).to(drafted.device) for array in (chosen, counts)]
    sources = indices(slots + 1, drafted.device).expand(rows, -1)
    return Accepted(on_device[0], sources, on_device[1], counts.tolist())


@compiled
def _up_to_eos(
    drafted: Ints, good: Bools, own: Ints, lengths: Ints, eos: int, room: Ints
) -> tuple[Ints, Ints]:
    """Tokens and counts of an :class:`Accepted`."""
    rows, slots = drafted.shape
    chosen = np.zeros((rows, slots + 1), np.int64)
    counts = np.zeros((5, rows), np.int64)
    for row in range(rows):
        accepted, ended = 0, False
        while not ended and accepted < lengths[row] and good[row, accepted]:
            chosen[row, accepted] = drafted[row, accepted]
            ended = drafted[row, accepted] == eos
            accepted += 1
        committed = accepted
        if not ended:
            chosen[row, accepted] = own[row, min(accepted, own.shape[1] - 1)]
            committed += 1
        counts[0, row] = committed
        counts[1, row] = min(accepted, room[row])
        counts[4, row] = chosen[row, committed - 1]
        counts[2, row] = counts[4, row] == eos
        counts[3, row] = lengths[row]
    return chosen, counts


def prepare_chains() -> None:
    """Compile what chains take, or load what was compiled, before the first batch is decoded."""
    nothing = torch.zeros(1, 0, dtype=torch.long)
    up_to_eos(nothing, nothing.bool(), torch.zeros(1, 1).long(), torch.zeros(1).long(), 2, None)
