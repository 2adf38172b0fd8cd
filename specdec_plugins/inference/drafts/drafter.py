"""``drafter``: blocks or trees by the pair's trained drafter."""

from __future__ import annotations

from specdec_plugins.inference.drafts.base import DraftKind, register


@register
class DrafterDrafts(DraftKind):
    """Drafts of the checkpoint that ``--path`` names."""

    name = "drafter"
    help = (
        "drafter: by the pair's drafter, the default with one on a GPU, or with one that is named"
    )
    trained = True
