"""Pairs of sentences with the tokens of their languages, as a multilingual model reads them."""

from __future__ import annotations

import numpy as np
from fairseq.data import BaseWrapperDataset, LanguagePairDataset, PrependTokenDataset
from torch import Tensor

from specdec_plugins.checkpoints.multilingual import LanguageTokens


class SourcesWithLanguage(BaseWrapperDataset):
    """Sources with their language."""

    def __init__(self, dataset: object, tokens: LanguageTokens) -> None:
        super().__init__(dataset)
        self._tokens = tokens

    def __getitem__(self, index: int) -> Tensor:
        return self._tokens.of_source(self.dataset[index])


def add_languages(pairs: LanguagePairDataset, tokens: LanguageTokens) -> None:
    """Give sources their language, and targets what they begin with after EOS."""
    if tokens == LanguageTokens():
        return
    if pairs.buckets is not None:
        raise ValueError("--num-batch-buckets: not supported for multilingual models; leave it out")
    pairs.src = SourcesWithLanguage(pairs.src, tokens)
    pairs.src_sizes = pairs.sizes = pairs.src_sizes + tokens.added
    if pairs.tgt is not None:
        for token in tokens.forced:
            pairs.tgt = PrependTokenDataset(pairs.tgt, token)
        pairs.tgt_sizes = pairs.tgt_sizes + len(tokens.forced)
        pairs.sizes = np.vstack((pairs.src_sizes, pairs.tgt_sizes)).T
