"""Which flags of a command line that translates do nothing, or are not honoured."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable

from specdec_plugins.decoding.acceptance import RULE_OPTIONS, SamplingRule
from specdec_plugins.decoding.controllers.base import CONTROLLERS
from specdec_plugins.decoding.engine_choice import OF_DRAFTER
from specdec_plugins.decoding.limits import REFUSED
from specdec_plugins.decoding.options import option_fields

SAMPLING = tuple(option.name for option in SamplingRule.options)
NOT_OF_TEXT = (
    ("model_overrides", "--model-overrides", "{}", "models are built as their checkpoints say"),
    ("num_shards", "--num-shards", 1, "give each part of the text as a file"),
    ("prefix_size", "--prefix-size", 0, "give --target-prefix"),
)
"""Flags that fairseq's own commands honour, but not ours: name, flag, the value that asks for
nothing, remedy."""


def idle_flags(args: Namespace) -> set[str]:
    """Our own flags that do nothing beside the others, and are not refused."""
    judging = {name for name in RULE_OPTIONS if name not in SAMPLING}
    options = {name for kind in CONTROLLERS.values() for name in option_fields(kind)}
    uncontrolled = judging | options
    # Only stock search has one; a script that compares systems has several, and runs that too.
    idle = set() if args.strategy == "fairseq" or isinstance(args.beam, list) else {"beam"}
    if args.strategy in ("drafter", "fairseq"):
        idle.add("AR_backend")
    if args.strategy == "drafter":
        return (idle | uncontrolled) - {"acceptance_head"}
    undrafted = {"block_size", OF_DRAFTER.name}
    if args.strategy != "specdec":
        return (idle | uncontrolled | undrafted) - {"acceptance_head"}
    if args.controller == "none":
        return idle | uncontrolled | undrafted
    # One that compares controllers has several or none, and uses the settings of all.
    if args.beta == 1:
        idle |= judging
    if args.controller is None or isinstance(args.controller, list):
        return idle
    if args.controller != "auto":
        idle.add("AR_backend")
    if args.controller not in CONTROLLERS:
        return set()  # which is refused when the settings are made
    return idle | (options - option_fields(CONTROLLERS[args.controller]).keys())


def refuse_flags(args: Namespace, refused: Iterable[tuple[str, object, str]]) -> None:
    """
    Args:
        refused: flags with the value of each that asks for nothing, and why it is refused.

    Raises:
        ValueError: one asks for something, by name.
    """
    for flag, nothing, why in refused:
        value = getattr(args, flag.removeprefix("--").replace("-", "_"))
        if value is not None and value != nothing:
            values = value if isinstance(value, list) else [] if value is True else [value]
            raise ValueError(f"{' '.join(map(str, (flag, *values)))}: {why}")


def check_honoured(args: Namespace) -> None:
    """
    Raises:
        ValueError: a flag of fairseq's would change the output and is not honoured, by name.
    """
    by_others = [(*flag, "fairseq's own commands have it") for flag in REFUSED]
    for _, flag, nothing, told in (*NOT_OF_TEXT, *by_others):
        refuse_flags(args, [(flag, nothing, f"not supported here; {told}")])
