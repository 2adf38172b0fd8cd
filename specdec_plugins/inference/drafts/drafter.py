"""``drafter``: blocks or trees by the pair's trained drafter."""

from __future__ import annotations

from specdec_plugins.decoding.controllers.base import Controller
from specdec_plugins.inference.drafts.base import DraftKind, register
from specdec_plugins.inference.run_options import RunOptions


@register
class DrafterDrafts(DraftKind):
    """Drafts of the checkpoint that ``--path`` names."""

    name = "drafter"
    help = (
        "drafter: by the pair's drafter, the default with one on a GPU, or with one that is named"
    )
    trained = True

    def takes(self, controller: Controller) -> bool:
        return True

    def controller(self, options: RunOptions) -> Controller:
        """Return the controller as it is: what ``auto`` stands for depends on the drafter."""
        return options.controller
