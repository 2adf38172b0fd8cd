"""Acceptance of drafted tokens. No fairseq in here."""

from specdec_plugins.decoding.acceptance.rules import (
    RULES,
    AcceptanceRule,
    RelaxedRule,
    SamplingRule,
    Scoring,
    StrictRule,
    choose_rule,
)
from specdec_plugins.decoding.acceptance.verification import Accepted, Verification

__all__ = [
    "RULES",
    "AcceptanceRule",
    "Accepted",
    "RelaxedRule",
    "SamplingRule",
    "Scoring",
    "StrictRule",
    "Verification",
    "choose_rule",
]
