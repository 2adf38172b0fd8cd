"""``none``: plain AR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from specdec_plugins.decoding.controllers.base import NoDrafts
from specdec_plugins.decoding.controllers.policy import Parts, Policy, register_policy


@register_policy
@dataclass(frozen=True, kw_only=True)
class NoPolicy(Policy):
    """See :class:`NoDrafts`."""

    name: ClassVar[str] = "none"
    help: ClassVar[str] = "draft nothing"
    rank: ClassVar[int] = 80
    drafts: ClassVar[bool] = False

    def build(self, parts: Parts) -> NoDrafts:
        return NoDrafts()
