"""``constant``: every step drafts and verifies as many slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from specdec_plugins.decoding.controllers.base import Controller, Needs
from specdec_plugins.decoding.controllers.policy import (
    DraftingPolicy,
    Parts,
    register_policy,
)


class Constant(Controller):
    """Drafts and verifies whole blocks, as published."""

    name = "constant"
    steady = True

    def __init__(self, length: int, needs: Needs | None = None) -> None:
        """``needs``: for other drafts than chains of so many slots."""
        self.needs = needs or Needs(length)


@register_policy
@dataclass(frozen=True, kw_only=True)
class ConstantPolicy(DraftingPolicy):
    """See :class:`Constant`."""

    name: ClassVar[str] = "constant"
    help: ClassVar[str] = "whole blocks"
    rank: ClassVar[int] = 10

    @property
    def idle(self) -> frozenset[str]:
        return frozenset({"min_draft"})

    def build(self, parts: Parts) -> Constant:
        return Constant(parts.bounds.most)
