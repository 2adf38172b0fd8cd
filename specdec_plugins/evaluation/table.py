"""A sweep's summary in Markdown: a table a group, and the comparisons in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from specdec_plugins.evaluation.comparisons import Comparison
from specdec_plugins.evaluation.summary import Group, Spread, SystemSummary, is_real, speed_ratio
from specdec_plugins.evaluation.systems import AR, DRAFTER
from specdec_plugins.files.json_object import JsonObject

RATES = {
    "acceptance_length": ("acceptance length", 2),
    "acceptance_rate": ("acceptance rate", 3),
    "verification_rate": ("verification rate", 3),
    "verified_discard_rate": ("discard rate, verified slots", 3),
    "discard_rate": ("discard rate, drafted slots", 3),
}
"""Their columns, and decimal places."""
SPEED, BLEU = "x AR (least to most)", "BLEU"
OF_TEXTS = (
    *("acceptance length", "verification rate", "discard rate, verified slots"),
    *(SPEED, BLEU),
)
"""The columns that a table across texts has of each."""
Column = tuple[str, Callable[[SystemSummary], str]]
"""Its head, and what it says of a system."""
NOTE = "Medians over alternating rounds ({rounds}), decoding only, of {sentences} sentences. "
SAMPLED_NOTE = (
    "Means over seeds ({rounds}, a round each; least to most in brackets), decoding only, of "
    "{sentences} sentences. Output is drawn: systems say different things, of different lengths, "
    "so that the time of a token is compared, not that of a sentence, and outputs are not compared "
    "at all; each is as probable with every system as with AR. "
)
MEANINGS = (
    "Ratios are taken within a round. Acceptance length: tokens committed a step, bonus token "
    "included. Acceptance rate: accepted tokens per verified one. Verification rate: verifier "
    "calls per committed token. Discard rate: slots not accepted per committed token, of those "
    "verified and of all drafted. Controller: what its answers took of the time. Memory: roughly, "
    "what loading a system added to that of the process, which all share, and the most that "
    "decoding added. "
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
    lines = [
        f"### {group.conditions}",
        "",
        *_format_columns(_columns(group), group.systems),
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


def format_texts(groups: Sequence[Group]) -> str:
    """One table across texts, under a heading: a row for each system, columns for each text.

    Args:
        groups: of different texts, and otherwise alike.
    """
    columns: list[Column] = [("system", _name), ("k", _block_size)]
    for group in groups:
        columns += [(f"{group.first.text}: {head}", tell) for head, tell in _of_text(group)]
    lines = [
        f"### All texts: {groups[0].machine}",
        "",
        *_format_columns(columns, groups[0].systems),
        "",
        "Each text as in its own table below; speed is over AR of the same text.",
    ]
    return "\n".join(lines) + "\n"


def _of_text(group: Group) -> Iterator[Column]:
    """What is told of a text, of the system of the same name that ran on it."""
    here = {system.name: system for system in group.systems}
    for head, tell in _columns(group):
        if head in OF_TEXTS:
            yield head, partial(_told_of, here, tell)


def _told_of(
    here: Mapping[str, SystemSummary],
    tell: Callable[[SystemSummary], str],
    system: SystemSummary,
) -> str:
    return tell(here[system.name]) if system.name in here else ""


def _format_columns(columns: Iterable[Column], systems: Iterable[SystemSummary]) -> Iterator[str]:
    columns = list(columns)
    rows = ([tell(system) for _, tell in columns] for system in systems)
    return format_table([head for head, _ in columns], rows)


def _columns(group: Group) -> Iterator[Column]:
    """Those of a group's table."""
    sampled = group.sampled
    yield "system", _name
    yield "k", _block_size
    for name, (head, _) in RATES.items():
        yield head, partial(_rate, name)
    if sampled:
        yield "ms/token (least to most)", lambda s: format_spread(s.milliseconds_per_token, 2, True)
    else:
        yield "tokens/s", lambda system: f"{system.tokens_per_second.median:.0f}"
    yield SPEED, partial(_speed, group.ar)
    yield "controller, % of time", lambda s: "" if _alone(s) else f"{100 * s.control_share:.1f}"
    yield "memory, MiB", lambda s: "" if s.memory is None else f"{s.memory / 2**20:.0f}"
    if any(system.bleu for system in group.systems):
        yield BLEU, _bleu
    if not sampled:
        yield "as AR", _same


def _name(system: SystemSummary) -> str:
    if system.policy == DRAFTER:
        return "*drafter alone*"
    return system.name if is_real(system.policy) else f"*{system.name}* (not real)"


def _block_size(system: SystemSummary) -> str:
    return "" if system.first.block_size is None else str(system.first.block_size)


def _alone(system: SystemSummary) -> bool:
    return system.policy == DRAFTER


def _rate(name: str, system: SystemSummary) -> str:
    """One of ``RATES``; of sampled output with least and most, where seeds differ."""
    if _alone(system) or (name == "acceptance_rate" and system.policy == AR):
        return ""
    spread, (_, digits) = system.spread(name), RATES[name]
    if system.first.sampled and spread.low < spread.high:
        return format_spread(spread, digits, sampled=True)
    return f"{getattr(system, name):.{digits}f}"


def _speed(ar: SystemSummary | None, system: SystemSummary) -> str:
    if ar is None or system.policy == AR:
        return "1" if system.policy == AR else ""
    return format_spread(speed_ratio(system, ar), sampled=system.first.sampled)


def _bleu(system: SystemSummary) -> str:
    if system.bleu is None or system.bleu.low == system.bleu.high:
        return "" if system.bleu is None else f"{system.bleu.mean:.1f}"
    return format_spread(system.bleu, 1, sampled=True)


def _same(system: SystemSummary) -> str:
    return "" if system.same_as_ar is None else f"{system.same_as_ar}/{system.first.sentences}"


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
