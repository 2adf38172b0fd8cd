"""Drafts, from drafting to acceptance. No fairseq in here."""

from specdec_plugins.decoding.drafts.chain import ChainDraft, DrawnDraft
from specdec_plugins.decoding.drafts.tree import LatticeTrees, TreeDraft

Draft = ChainDraft | TreeDraft
"""Drafted tokens of every row. Of both kinds, the attributes that a verifier reads are alike."""

__all__ = ["ChainDraft", "Draft", "DrawnDraft", "LatticeTrees", "TreeDraft"]
