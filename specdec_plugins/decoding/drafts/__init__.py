"""Drafts: what the verifier is to read, and how it is accepted. No fairseq."""

from specdec_plugins.decoding.drafts.chain import ChainDraft, DrawnDraft
from specdec_plugins.decoding.drafts.draft import Draft
from specdec_plugins.decoding.drafts.tree import LatticeTrees, TreeDraft

__all__ = [
    "ChainDraft",
    "Draft",
    "DrawnDraft",
    "LatticeTrees",
    "TreeDraft",
]
