"""``constant``: every step drafts and verifies as many slots."""

from __future__ import annotations

from specdec_plugins.decoding.controllers.base import Controller, Needs
from specdec_plugins.decoding.controllers.registry import (
    MIN_DRAFT,
    Policy,
    Style,
    register_policy,
)


class Constant(Controller):
    """As published: whole blocks."""

    name = "constant"

    def __init__(self, length: int, needs: Needs | None = None) -> None:
        """``needs``: for other drafts than chains of so many slots."""
        self.needs = needs or Needs(length)


register_policy(
    Policy(
        "constant",
        "whole blocks",
        build=lambda options, parts: Constant(parts.bounds.most),
        styles={"constant": Style("#0072B2", "o")},
        rank=10,
        idle=lambda options: {MIN_DRAFT.name},
    )
)
