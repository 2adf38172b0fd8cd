"""Which drafted tokens are accepted: all of acceptance, without fairseq."""

from specdec_plugins.decoding.acceptance.rules import (
    RULE_OPTIONS,
    RULES,
    AcceptanceRule,
    RelaxedRule,
    SamplingRule,
    StrictRule,
    choose_rule,
)
from specdec_plugins.decoding.acceptance.scoring import Scoring
from specdec_plugins.decoding.acceptance.verification import Accepted, Verification

__all__ = [
    "RULES",
    "RULE_OPTIONS",
    "AcceptanceRule",
    "Accepted",
    "RelaxedRule",
    "SamplingRule",
    "Scoring",
    "StrictRule",
    "Verification",
    "choose_rule",
]
