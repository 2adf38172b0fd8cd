"""A sweep's summary in Markdown: a table a group, and the comparisons in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from specdec_plugins.evaluation.comparisons import Comparison
from specdec_plugins.evaluation.summary import Group, Spread, SystemSummary, is_real, speed_ratio
from specdec_plugins.evaluation.systems import AR, DRAFTER
from specdec_plugins.inference.settings import JsonObject

SHOWN_RATES = {
    "acceptance_length": 2,
    "verification_rate": 3,
    "verified_discard_rate": 3,
    "discard_rate": 3,
}
"""And the decimal places of each."""
COLUMNS = (
    "system",
    "k",
    "acceptance length",
    "verification rate",
    "discard rate, verified slots",
    "discard rate, drafted slots",
    "tokens/s",
    "x AR (least to most)",
    "controller, % of time",
    "as AR",
)
SAMPLED_COLUMNS = tuple(
    {"tokens/s": "ms/token (least to most)"}.get(name, name) for name in COLUMNS if name != "as AR"
)
"""Of sampled output: it is nobody's duty to say what AR says."""
NOTE = "Medians over alternating rounds ({rounds}), decoding only, of {sentences} sentences. "
SAMPLED_NOTE = (
    "Means over seeds ({rounds}, a round each; least to most in brackets), decoding only, of "
    "{sentences} sentences. Output is drawn: systems say different things, of different lengths, "
    "so that the time of a token is compared, not that of a sentence, and outputs are not compared "
    "at all; each is as probable with every system as with AR. "
)
MEANINGS = (
    "Ratios are taken within a round. Acceptance length: tokens committed a step, bonus token "
    "included. Verification rate: verifier calls per committed token. Discard rate: slots not "
    "accepted per committed token, of those verified and of all drafted. Controller: what its "
    "answers took of the time. "
)
REMARKS = (
    "As AR: sentences with the same output. The oracle knows what of a chain will be accepted: it "
    "is **not a real decoder**; the drafter alone is not verified."
)


def format_group(group: Group, comparisons: JsonObject) -> str:
    """The table of a group under a heading with its conditions, then what it comes to."""
    counts = [len(system.runs) for system in group.systems]
    rounds = str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    note = SAMPLED_NOTE + MEANINGS if group.sampled else NOTE + MEANINGS + REMARKS
    head = SAMPLED_COLUMNS if group.sampled else COLUMNS
    lines = [
        f"### {group.conditions}",
        "",
        *format_table(head, (_row(system, group.ar) for system in group.systems)),
        "",
        note.format(rounds=rounds, sentences=group.first.sentences).strip(),
        "",
        *_sentences(comparisons, group.sampled),
    ]
    return "\n".join(lines) + "\n"


def format_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """The lines of a table."""
    head = list(head)
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _row(system: SystemSummary, ar: SystemSummary | None) -> list[str]:
    run = system.first
    verified = run.policy != DRAFTER
    ratio = speed_ratio(system, ar) if ar is not None else None
    names = {DRAFTER: "*drafter alone*"}
    if not is_real(run.policy):
        names[run.policy] = f"*{system.name}* (not real)"
    same = "" if system.same_as_ar is None else f"{system.same_as_ar}/{run.sentences}"
    pace, sampled = system.milliseconds_per_token, run.sampled
    return [
        names.get(run.policy, system.name),
        "" if run.block_size is None else str(run.block_size),
        *(_rate(system, name) if verified else "" for name in SHOWN_RATES),
        format_spread(pace, sampled=True) if sampled else f"{system.tokens_per_second.median:.0f}",
        format_spread(ratio, sampled=sampled) if run.policy != AR else "1",
        f"{100 * system.control_share:.1f}" if verified else "",
        *([] if sampled else [same]),
    ]


def _rate(system: SystemSummary, name: str) -> str:
    """One of ``SHOWN_RATES``; of sampled output with least and most, where seeds differ."""
    spread, digits = system.spread(name), SHOWN_RATES[name]
    if system.first.sampled and spread.low < spread.high:
        return format_spread(spread, digits, sampled=True)
    return f"{getattr(system, name):.{digits}f}"


def format_spread(spread: Spread | None, digits: int = 2, sampled: bool = False) -> str:
    """What stands for all, and in brackets least and most; nothing of None."""
    if spread is None:
        return ""
    middle, low, high = (
        f"{value:.{digits}f}" for value in (spread.middle(sampled), spread.low, spread.high)
    )
    return f"{middle} ({low} to {high})"


def _sentences(comparisons: JsonObject, sampled: bool) -> Iterator[str]:
    """The comparisons but those with AR, which the table holds."""
    for found in comparisons["acceptance_head_against_constant"]:
        yield f"- {_discard(found)}"
    best = comparisons["best_controller_over_best_constant"]
    if best is not None:
        yield f"- Best controller over best constant k: {_ratio(best, sampled)}."
    for name, rivals in (
        ("simple", "the best of AR, constant k, heuristic and confidence"),
        ("tree", "the best tree"),
    ):
        for found in filter(None, comparisons[f"cost_aware_over_best_{name}"]):
            yield f"- cost-aware over {rivals}: {_ratio(found, sampled)}."
    for found in filter(None, comparisons["cost_aware_as_part_of_oracle"]):
        ratio = _ratio(found, sampled)
        yield f"- cost-aware as a part of the oracle's speed (not a real decoder): {ratio}."


def _ratio(found: Comparison, sampled: bool) -> str:
    spread = format_spread(Spread(**found["speed_ratio"]), sampled=sampled)
    return f"{found['system']} over {found['over']}, {spread} x tokens/s"


def _discard(found: Comparison) -> str:
    start = f"{found['system']}: at verification rate {found['verification_rate']:.3f}"
    if found["constant_verification_rates"] is None:
        return f"{start} there is no constant k to compare with."
    if found["outside"]:
        low, high = found["constant_verification_rates"]
        return f"{start}, outside the range of constant k ({low:.3f} to {high:.3f}): no comparison."
    rates = found["verified_discard_rate"]
    percent = rates["reduction_percent"]
    change = "" if percent is None else f", {abs(percent):.0f} % {_less(percent)}"
    return (
        f"{start} it has {rates['own']:.3f} verified slots discarded per committed token, constant "
        f"k {rates['constant']:.3f}{change}."
    )


def _less(percent: float) -> str:
    return "fewer" if percent >= 0 else "more"
