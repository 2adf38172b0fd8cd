"""Options that fairseq's own search does not have. No fairseq in here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

INSTEAD = "translate with a drafter, or by --strategy AR of specdec-translate"


def check_stock_search(options: Mapping[str, Any]) -> None:
    """
    Raises:
        ValueError: fairseq's own search would ignore an option of generation, by its flag.
    """
    penalty = options.get("repetition_penalty", 1)
    if penalty != 1:
        raise ValueError(f"--repetition-penalty {penalty}: is not in fairseq's search; {INSTEAD}")
    if options.get("sampling_topk", -1) > 0 and options.get("sampling_topp", -1) > 0:
        raise ValueError(f"--sampling-topk, --sampling-topp: fairseq takes one of them; {INSTEAD}")
