"""The base class of kinds of draft, and their registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, TypeVar

from specdec_plugins.decoding.controllers.base import Controller
from specdec_plugins.decoding.controllers.simple import Auto, Constant
from specdec_plugins.decoding.drafting import DraftSource
from specdec_plugins.engines.engine import Engine
from specdec_plugins.inference.run_options import RunOptions

if TYPE_CHECKING:
    from fairseq.data import Dictionary
    from fairseq.models.transformer import TransformerModelBase

#: All kinds of draft, by name.
DRAFTS: dict[str, DraftKind] = {}
KindType = TypeVar("KindType", bound="type[DraftKind]")


def register(kind: KindType) -> KindType:
    """Make a kind of draft known to ``--drafts``, settings and experiments."""
    DRAFTS[kind.name] = kind()
    return kind


class DraftKind:
    """Where drafts come from.

    A subclass makes chains, with a distribution that leaves no choice, unless it says otherwise.
    """

    #: The value of ``--drafts``.
    name: ClassVar[str]
    #: The words for it in the flag's help: ``copy: by …``.
    help: ClassVar[str]
    #: True if a trained drafter makes them; :meth:`source` is not called.
    trained: ClassVar[bool] = False
    #: True if each line comes with a text to draft (``Line.draft``).
    of_lines: ClassVar[bool] = False

    def takes(self, controller: Controller) -> bool:
        """Return whether a controller can control these drafts: without a trained drafter chains
        for which no acceptance head is trained."""
        if self.trained or isinstance(controller, Auto):
            return True
        needs_drafter = controller.trees or controller.asks_head
        return controller.drafts and controller.real and not needs_drafter

    def controller(self, options: RunOptions) -> Controller:
        """Return the controller of a run; in place of ``auto`` the one for these drafts, unless it
        depends on a drafter, which is not loaded yet.

        Where they do not pay it is :class:`NoDrafts`, after which nothing of them is loaded.
        """
        if isinstance(options.controller, Auto) and not self.trained:
            return Constant()
        return options.controller

    def source(
        self,
        options: RunOptions,
        source: Dictionary,
        target: Dictionary,
        verifier: TransformerModelBase,
        engine: Engine,
    ) -> DraftSource:
        """Return what makes the drafts of each batch.

        Args:
            source, target: the dictionaries.
            verifier: in the precision of its ``engine``.
        """
        raise NotImplementedError
