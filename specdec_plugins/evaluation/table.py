"""A sweep's summary in Markdown: a table a group, and the comparisons in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from specdec_plugins.evaluation.comparisons import Comparison
from specdec_plugins.evaluation.summary import Group, Spread, SystemSummary, is_real, speed_ratio
from specdec_plugins.evaluation.systems import AR, DRAFTER
from specdec_plugins.inference.settings import JsonObject

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
NOTE = (
    "Medians over alternating rounds ({rounds}), decoding only, of {sentences} sentences; ratios "
    "are taken within a round. Acceptance length: tokens committed a step, bonus token included. "
    "Verification rate: verifier calls per committed token. Discard rate: slots not accepted per "
    "committed token, of those verified and of all drafted. Controller: what its answers took of "
    "the time. As AR: sentences with the same output. "
    "The oracle knows what of a chain will be accepted: it is **not a real decoder**; the drafter "
    "alone is not verified."
)


def format_group(group: Group, comparisons: JsonObject) -> str:
    """The table of a group under a heading with its conditions, then what it comes to."""
    counts = [len(system.runs) for system in group.systems]
    rounds = str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    lines = [
        f"### {group.conditions}",
        "",
        *format_table(COLUMNS, (_row(system, group.ar) for system in group.systems)),
        "",
        NOTE.format(rounds=rounds, sentences=group.first.sentences),
        "",
        *_sentences(comparisons),
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
    return [
        names.get(run.policy, system.name),
        "" if run.block_size is None else str(run.block_size),
        f"{system.acceptance_length:.2f}" if verified else "",
        f"{system.verification_rate:.3f}" if verified else "",
        f"{system.verified_discard_rate:.3f}" if verified else "",
        f"{system.discard_rate:.3f}" if verified else "",
        f"{system.tokens_per_second.median:.0f}",
        format_spread(ratio) if run.policy != AR else "1",
        f"{100 * system.control_share:.1f}" if verified else "",
        same,
    ]


def format_spread(spread: Spread | None, digits: int = 2) -> str:
    """The median, and in brackets least and most; nothing of None."""
    if spread is None:
        return ""
    median, low, high = (
        f"{value:.{digits}f}" for value in (spread.median, spread.low, spread.high)
    )
    return f"{median} ({low} to {high})"


def _sentences(comparisons: JsonObject) -> Iterator[str]:
    """The comparisons but those with AR, which the table holds."""
    for found in comparisons["acceptance_head_against_constant"]:
        yield f"- {_discard(found)}"
    best = comparisons["best_controller_over_best_constant"]
    if best is not None:
        yield f"- Best controller over best constant k: {_ratio(best)}."
    for name, rivals in (
        ("simple", "the best of AR, constant k, heuristic and confidence"),
        ("tree", "the best tree"),
    ):
        for found in filter(None, comparisons[f"cost_aware_over_best_{name}"]):
            yield f"- cost-aware over {rivals}: {_ratio(found)}."
    for found in filter(None, comparisons["cost_aware_as_part_of_oracle"]):
        yield f"- cost-aware as a part of the oracle's speed (not a real decoder): {_ratio(found)}."


def _ratio(found: Comparison) -> str:
    spread = Spread(**found["speed_ratio"])
    return f"{found['system']} over {found['over']}, {format_spread(spread)} x tokens/s"


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
