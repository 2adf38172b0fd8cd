"""What fairseq's own search has not, so that it must not be asked for. No fairseq in here."""

from __future__ import annotations

from specdec_plugins.decoding.acceptance.rules import TOPK, TOPP
from specdec_plugins.decoding.limits import REPETITION_PENALTY
from specdec_plugins.decoding.options import Values

INSTEAD = "translate with a drafter, or by --strategy AR of inference.py"


def check_stock_search(options: Values) -> None:
    """Of generation, by name; what is missing has its default.

    Raises:
        ValueError: fairseq's own search would ignore an option, naming its flag.
    """
    penalty = options.get(REPETITION_PENALTY.name, 1)
    if penalty != 1:
        flag = REPETITION_PENALTY.flag
        raise ValueError(f"{flag} {penalty}: fairseq's own search has none; {INSTEAD}")
    if all(options.get(option.name, option.default) > 0 for option in (TOPK, TOPP)):
        raise ValueError(
            f"{TOPK.flag} and {TOPP.flag}: fairseq's own search takes one of them; {INSTEAD}"
        )
