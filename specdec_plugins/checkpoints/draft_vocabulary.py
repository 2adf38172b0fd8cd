"""Draft vocabularies: the tokens that the verifier writes most."""

from __future__ import annotations

from collections import Counter

import torch
from fairseq.data import Dictionary
from torch import Tensor

from specdec_plugins.checkpoints.archive import one_line
from specdec_plugins.files.errors import CheckpointError

MOST_UNKNOWN = 0.02
"""Part of a text's tokens. Of text in whole words a quarter and more are unknown where the
dictionary has parts of words."""


def most_frequent(count: int, path: str, dictionary: Dictionary) -> Tensor:
    """Return the ``(count,)`` tokens that a text has most often, EOS among them, in the
    dictionary's order.

    Args:
        path: the text: segmented, a sentence a line, best the verifier's output.

    Raises:
        CheckpointError: the text cannot be read, is not segmented as the dictionary's was, or has
            fewer kinds of tokens.
    """
    seen, eos = _counted(path, dictionary), dictionary.eos()
    total, unknown = sum(seen.values()), seen.pop(dictionary.unk(), 0)
    seen.pop(dictionary.pad(), None)
    if unknown > MOST_UNKNOWN * total:
        raise CheckpointError(
            f"--draft-text {path}: of {total} tokens {unknown} are not in the dictionary; give "
            "text that is segmented as the drafter's training text was"
        )
    if not 2 <= count <= len(seen):
        raise CheckpointError(
            f"--draft-vocabulary {count}: must be from 2 to the {len(seen)} kinds of tokens that "
            f"{path} has"
        )
    # Of tokens that are equally frequent, those that come first in the dictionary. EOS, which ends
    # every draft that gets so far, is never left out.
    ranked = sorted(seen, key=lambda token: (token != eos, -seen[token], token))
    return torch.tensor(sorted(ranked[:count]))


def _counted(path: str, dictionary: Dictionary) -> Counter[int]:
    seen: Counter[int] = Counter()
    try:
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                seen.update(map(dictionary.index, line.split()))
                seen[dictionary.eos()] += 1
    except (OSError, UnicodeDecodeError) as error:
        fault = getattr(error, "strerror", None) or one_line(error)
        raise CheckpointError(
            f"--draft-text {path}: cannot be read ({fault}); give segmented text in UTF-8"
        ) from error
    return seen
