"""What every engine can do. No fairseq in here."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from specdec_plugins.engines.sizes import PaddedSizes
from specdec_plugins.engines.step import Run, Step


class Engine(Protocol):
    """Runs pure steps fast."""

    dtype: torch.dtype
    """Of the models that it is given."""
    packed: bool
    """Whether steps are to hold their weights in oneDNN's own layout."""

    @property
    def name(self) -> str:
        """What runs the steps that it has prepared."""
        ...

    @property
    def precision(self) -> str:
        """What they really compute in, whatever was asked for."""
        ...

    @property
    def about(self) -> Mapping[str, object]:
        """What its times depend on beside name, precision and threads: versions, settings."""
        ...

    @property
    def sizes(self) -> PaddedSizes | None:
        """To which what steps are handed is padded, on the host; None: steps are handed what there
        is."""
        ...

    def prepare(self, step: Step) -> Run:
        """What is called in place of the step, whose weights are not to change.

        Where sizes are padded, that is of a cached step its :class:`FunctionalStep`. Inputs may
        then be the same tensors again, filled anew.
        """
        ...

    def running(self) -> AbstractContextManager[None]:
        """Is entered while steps are run."""
        ...
