"""``source`` and FILE: texts that are there before the translation."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from specdec_plugins.decoding.drafting import DraftSource
from specdec_plugins.decoding.text_drafting import TextDrafting
from specdec_plugins.engines.engine import Engine
from specdec_plugins.inference.drafts.base import DraftKind, register
from specdec_plugins.inference.run_options import RunOptions

if TYPE_CHECKING:
    from fairseq.data import Dictionary
    from fairseq.models.transformer import TransformerModelBase


@register
class SourceDrafts(DraftKind):
    """Drafts the source, in the target's symbols."""

    name = "source"
    help = "source: the source itself"

    def source(
        self,
        options: RunOptions,
        source: Dictionary,
        target: Dictionary,
        verifier: TransformerModelBase,
        engine: Engine,
    ) -> DraftSource:
        """Return the drafting of the texts that come with a batch, or else of its source."""
        symbols = [target.index(symbol) for symbol in source.symbols]
        return DraftSource(partial(TextDrafting.of, source.pad(), symbols))


@register
class LineDrafts(SourceDrafts):
    """Drafts the text of each line: of a file, or of :attr:`Line.draft`."""

    name = "texts"
    help = "FILE: a draft for each line"
    of_lines = True
