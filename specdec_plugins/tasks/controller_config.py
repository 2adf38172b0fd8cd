"""The controller's options, once for the task and the command lines."""

# No postponed annotations: fairseq reads the fields' types at run time.

from dataclasses import dataclass, field
from typing import Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from specdec_plugins.decoding.controllers import NAMES, SURVIVAL, ControllerOptions

DEFAULTS = ControllerOptions()


@dataclass
class ControllerConfig(FairseqDataclass):
    """How much to draft and to verify; see :class:`ControllerOptions`."""

    controller: ChoiceEnum(NAMES) = field(  # type: ignore[valid-type]
        default=DEFAULTS.controller,
        metadata={
            "help": "what decides how much to draft and verify: constant (whole blocks); heuristic "
            "(2 more when all was accepted, else 1 less); confidence (cut at the first unlikely "
            "slot); acceptance-head (cut where a rejection becomes likely); tree (the most "
            "probable continuations, which branch, or what the last step left of them); "
            "cost-aware (most tokens a second on this machine, so that relaxed output depends on "
            "timings and on the batch); none (draft nothing); oracle "
            "(decodes twice, to show the bound of chains: not a real decoder)"
        },
    )
    min_draft: int = field(
        default=DEFAULTS.min_draft,
        metadata={"help": "the fewest slots to draft and, of those, to verify; of a tree: nodes"},
    )
    max_draft: Optional[int] = field(
        default=DEFAULTS.max_draft,
        metadata={"help": "the most slots to draft, or how deep a tree; by default the block size"},
    )
    confidence_threshold: float = field(
        default=DEFAULTS.confidence_threshold,
        metadata={"help": "confidence: cut at the first slot less probable than this"},
    )
    refit_threshold: bool = field(
        default=DEFAULTS.refit_threshold,
        metadata={
            "help": "confidence: fit the threshold to what was accepted last, of all sentences: "
            "relaxed output then depends on them"
        },
    )
    stop_threshold: float = field(
        default=DEFAULTS.stop_threshold,
        metadata={"help": "acceptance-head: cut where a rejection is more probable than this"},
    )
    tree_nodes: int = field(
        default=DEFAULTS.tree_nodes,
        metadata={"help": "tree: how many tokens of a tree to verify; cost-aware: at most"},
    )
    redraft_below: float = field(
        default=DEFAULTS.redraft_below,
        metadata={
            "help": "tree: draft anew where what is left of the last draft promises fewer accepted "
            "tokens a sentence; inf: always (cost-aware decides by itself)"
        },
    )
    survival: Optional[ChoiceEnum(SURVIVAL)] = field(  # type: ignore[valid-type]
        default=DEFAULTS.survival,
        metadata={
            "help": "cost-aware: what tells how much will be accepted: of trees, averages by node "
            "(tree); or of chains, averages by slot (averages), the drafter's confidence, "
            "corrected by what happened, or the acceptance head (default: the head if "
            "--acceptance-head names one, else tree)"
        },
    )
    acceptance_head: Optional[str] = field(
        default=DEFAULTS.acceptance_head,
        metadata={
            "help": "acceptance-head, cost-aware: file of the head (inference.py finds the "
            "acceptance_head.pt, or for relaxed acceptance or sampling acceptance_head.relaxed.pt "
            "or .sampling.pt, that lies beside the drafter, where one is needed)"
        },
    )
    cost_profile: Optional[str] = field(
        default=DEFAULTS.cost_profile,
        metadata={
            "help": "cost-aware: file of what steps cost here; measured and written if it is not "
            "there (default: one in ~/.cache/specdec)"
        },
    )
