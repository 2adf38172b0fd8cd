"""Which tokens a drafter drafts: those that the verifier writes most."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
from fairseq.data import Dictionary
from torch import Tensor

from specdec_plugins.checkpoints.archive import one_line
from specdec_plugins.files.errors import CheckpointError

MOST_UNKNOWN = 0.02
"""Part of a text's tokens. Of text in whole words a quarter and more are unknown where the
dictionary has parts of words."""


@dataclass(frozen=True)
class FrequentTokens:
    """The tokens that a text has most often."""

    count: int
    """How many of them."""
    path: str
    """The text: segmented, a sentence a line, best the verifier's output."""

    def of(self, dictionary: Dictionary) -> Tensor:
        """``(count,)`` the tokens, EOS among them, in the dictionary's order.

        Raises:
            CheckpointError: the text cannot be read, is not segmented as the dictionary's was, or
                has fewer kinds of tokens.
        """
        seen = self._counted(dictionary)
        total, unknown = sum(seen.values()), seen.pop(dictionary.unk(), 0)
        seen.pop(dictionary.pad(), None)
        if unknown > MOST_UNKNOWN * total:
            raise CheckpointError(
                f"--draft-text {self.path}: of {total} tokens {unknown} are not in the dictionary; "
                "give text that is segmented as the drafter's training text was"
            )
        if not 2 <= self.count <= len(seen):
            raise CheckpointError(
                f"--draft-vocabulary {self.count}: must be from 2 to the {len(seen)} kinds of "
                f"tokens that {self.path} has"
            )
        # Of tokens that are equally frequent, those that come first in the dictionary. EOS, which
        # ends every draft that gets so far, is never left out.
        eos = dictionary.eos()
        ranked = sorted(seen, key=lambda token: (token != eos, -seen[token], token))
        return torch.tensor(sorted(ranked[: self.count]))

    def _counted(self, dictionary: Dictionary) -> Counter[int]:
        seen: Counter[int] = Counter()
        try:
            with open(self.path, encoding="utf-8") as lines:
                for line in lines:
                    seen.update(map(dictionary.index, line.split()))
                    seen[dictionary.eos()] += 1
        except (OSError, UnicodeDecodeError) as error:
            fault = getattr(error, "strerror", None) or one_line(error)
            raise CheckpointError(
                f"--draft-text {self.path}: cannot be read ({fault}); give segmented text in UTF-8"
            ) from error
        return seen
