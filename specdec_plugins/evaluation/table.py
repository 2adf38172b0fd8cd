"""Figures in Markdown: the tables of a summary, of which the manual's are made, too.

Nothing is imported here: pages are made where nothing is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from specdec_plugins.files.errors import counted
from specdec_plugins.files.output import JsonObject as Json

"""A summary, or what it tells of a system."""
T = TypeVar("T")
Columns = Mapping[str, Callable[[T], str]]
"""What a table says of an item, by the heads of the columns."""

SHORT = ("system", "ms per sentence", "x", "acceptance length")
QUALITY = (
    *("system", "BLEU", "tokenised BLEU", "acceptance length"),
    *("lines unlike AR", "lines unlike CTranslate2 float32"),
)
USUAL = (
    *("system", "ms per sentence", "x", "BLEU", "tokenised BLEU", "acceptance length"),
    *("verification rate", "discard rate", "memory, MiB"),
)
FULL = (
    *("system", "k", "threads", "ms per sentence", "ms per token", "x", "BLEU", "tokenised BLEU"),
    *("acceptance length", "acceptance rate", "verification rate", "of verified", "discard rate"),
    *("controller, % of time", "memory, MiB"),
    *("lines unlike AR", "lines unlike CTranslate2 float32"),
)
VIEWS: dict[str | None, tuple[str, ...]] = {"short": SHORT, "quality": QUALITY, None: USUAL}
"""Columns by the name of a view; ``x`` stands for the speed over the baseline."""
MEANINGS = (
    "Times are of decoding alone; {over}, least to most in brackets. x: how many times as fast as "
    "{baseline} with as many threads, taken within a round{drawn}. Acceptance length: tokens "
    "committed a step, bonus token included. Acceptance rate: accepted tokens per verified one. "
    "Verification rate: verifier calls per committed token. Discard rate: drafted tokens that were "
    "not accepted, per committed token; of verified: only those that were verified. Controller: "
    "what its answers took of the time. {memory}Lines unlike: how many differ from those "
    "of AR of the same engine and precision, and from those of CTranslate2 in float32.{bleu}"
)
BLEU = (
    " BLEU: sacreBLEU `{}`. Tokenised BLEU: of Moses tokens, compounds split, as in the SpecDec "
    "paper."
)
MEMORY = {
    True: "Memory: the most that the system's process had, libraries and weights included. ",
    False: "Memory: the most that the system's tensors had of the GPU's. ",
}
"""By whether each system had a process of its own."""
DRAWN = (
    "; output is drawn and differs in length, so that tokens are timed, not sentences, and outputs "
    "are not compared"
)


def markdown(columns: Columns[T], items: Iterable[T]) -> Iterator[str]:
    """The lines of a table about items."""
    return table(columns, ([make(item) for make in columns.values()] for item in items))


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """The lines of a table."""
    heads = list(heads)
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    yield from (f"| {' | '.join(row)} |" for row in rows)


def filled(columns: Columns[T], items: Iterable[T]) -> Columns[T]:
    """Return the columns that say something of an item."""
    items = list(items)
    return {head: make for head, make in columns.items() if any(map(make, items))}


def number(value: float | None, digits: int) -> str:
    """Return a figure, or nothing."""
    return "" if value is None else f"{value:.{digits}f}"


def spread(value: Json | None, digits: int | None = None, sampled: bool = False) -> str:
    """Return a median, of drawn output a mean, and of several rounds least to most."""
    if value is None:
        return ""
    places = digits if digits is not None else (2 if value["median"] < 10 else 1)
    middle = f"{value['mean' if sampled else 'median']:.{places}f}"
    if value["rounds"] == 1:
        return middle
    return f"{middle} ({value['low']:.{places}f} to {value['high']:.{places}f})"


def columns(figures: Json, heads: Sequence[str]) -> Columns[Json]:
    """Columns about systems, by what :data:`VIEWS` call them; empty where figures lack something,
    as those of earlier versions do."""
    every = {
        "system": named,
        "k": lambda s: number(s.get("k"), 0),
        "threads": lambda s: str(s["threads"]),
        "ms per sentence": lambda s: (
            "" if s.get("seeds") else spread(s.get("milliseconds_a_sentence"))
        ),
        "ms per token": lambda s: (
            spread(s.get("milliseconds_per_token"), 2, True) if s.get("seeds") else ""
        ),
        "x": _speed,
        "BLEU": lambda s: _bleu(s.get("bleu")),
        "tokenised BLEU": lambda s: _bleu(s.get("tokenised_bleu")),
        "acceptance length": lambda s: _rate(s, "acceptance_length", 2),
        "acceptance rate": lambda s: _rate(s, "acceptance_rate", 3),
        "verification rate": lambda s: _rate(s, "verification_rate", 3),
        "of verified": lambda s: _rate(s, "verified_discard_rate", 2),
        "discard rate": lambda s: _rate(s, "discard_rate", 2),
        "controller, % of time": lambda s: number(_percent(s.get("control_share")), 1),
        "memory, MiB": lambda s: number(s.get("memory_mib"), 0),
        "lines unlike AR": lambda s: number(s.get("lines_unlike_AR"), 0),
        "lines unlike CTranslate2 float32": lambda s: number(
            s.get("lines_unlike_CTranslate2_float32"), 0
        ),
    }
    return {head if head != "x" else f"x {figures['baseline']}": every[head] for head in heads}


def named(system: Json) -> str:
    """Return a system, and what runs it: its own name leaves PyTorch out."""
    name, precision = str(system["system"]), system["precision"]
    if not system.get("real_decoder", True):
        return f"{name} (not real)"
    own = system["strategy"] not in ("CTranslate2", "fairseq")
    if own and system["engine"] == "eager" and name.endswith(f" {precision}"):
        return f"{name.removesuffix(precision)}eager {precision}"
    return name


def _speed(system: Json) -> str:
    return spread(system.get("speed_over_baseline"), 2, bool(system.get("seeds")))


def _bleu(value: Json | None) -> str:
    return spread(value, 1, sampled=True)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _rate(system: Json, name: str, digits: int) -> str:
    """Return a rate, with the least and the greatest where seeds differ."""
    every = system.get("over_rounds", {}).get(name)
    if system.get("seeds") and every and every["low"] < every["high"]:
        return spread(every, digits, sampled=True)
    return number(system.get(name), digits)


def systems_of(figures: Json) -> list[Json]:
    """All systems of all groups."""
    return [system for group in figures["groups"] for system in group["systems"]]


def groups_table(figures: Json, chosen: Callable[[Json], bool] = lambda s: True) -> Iterator[str]:
    """A row a system, with its rates in the first group that has it, and its speed in each."""
    by_group = [{s["system"]: s for s in group["systems"]} for group in figures["groups"]]
    names = dict.fromkeys(name for here in by_group for name in here)
    known = [next(here[name] for here in by_group if name in here) for name in names]
    rates = ("system", "acceptance length", "verification rate", "discard rate", "of verified")
    made, shared = columns(figures, rates), shared_conditions(figures)
    heads = list(made)
    for group in figures["groups"]:
        apart = [part for part in _conditions(group) if part not in shared]
        heads.append(", ".join([f"x {figures['baseline']}", *apart]))
    rows = []
    for system in filter(chosen, known):
        speeds = [_speed(here.get(system["system"], {})) for here in by_group]
        rows.append([*(make(system) for make in made.values()), *speeds])
    return table(heads, rows)


def shared_conditions(figures: Json) -> list[str]:
    """Return what all groups have in common."""
    parts = list(map(_conditions, figures["groups"]))
    return [part for part in parts[0] if all(part in others for others in parts)]


def _conditions(group: Json) -> list[str]:
    """One by one: the text, and how it is decoded."""
    text = group["systems"][0].get("text")
    if text is None:
        return str(group["conditions"]).split(", ")
    return [text, *group["conditions"].removeprefix(f"{text}: ").split(", ")]


def texts_table(figures: Json) -> Iterator[str]:
    """A row a text, in its first group: BLEU of what drafts nothing, acceptance lengths of what
    does."""
    by_text: dict[str, dict[str, Json]] = {}
    for group in figures["groups"]:
        here = {system["system"]: system for system in group["systems"]}
        by_text.setdefault(group["systems"][0]["text"], here)
    groups = list(by_text.values())
    made: dict[str, Callable[[dict[str, Json]], str]] = {
        "text": lambda g: str(next(iter(g.values()))["text"])
    }
    for name, system in groups[0].items():
        plain = system["controller"] is None
        made[f"BLEU of {name}" if plain else name] = partial(_of_text, name, plain)
    return markdown(filled(made, groups), groups)


def _of_text(name: str, plain: bool, systems: Mapping[str, Json]) -> str:
    if name not in systems:
        return ""
    system = systems[name]
    return _bleu(system["bleu"]) if plain else number(system["acceptance_length"], 2)


def summary_tables(figures: Json) -> str:
    """All that a summary tells: what differs between groups, each group, and what columns mean."""
    parts: list[str] = []
    if len(figures["groups"]) > 1:
        parts += [
            f"### All: {', '.join(shared_conditions(figures))}",
            "",
            *groups_table(figures),
            "",
        ]
    if len({system["text"] for system in systems_of(figures)}) > 1:
        parts += [*texts_table(figures), ""]
    for group in figures["groups"]:
        made = columns(figures, FULL)
        several = len({system["threads"] for system in group["systems"]}) > 1
        made = {head: make for head, make in made.items() if several or head != "threads"}
        lines = counted(group["systems"][0]["sentences"], "sentence")
        parts += [f"### {group['conditions']}; {lines}", ""]
        parts += [*markdown(filled(made, group["systems"]), group["systems"]), ""]
        saved = [f"- {_saved(one)}" for one in group["acceptance_head_against_constant"]]
        parts += [*saved, ""] if saved else []
    parts.append(_meanings(figures))
    parts += [f"\n{family} is left out: {why}." for family, why in figures["left_out"].items()]
    return "\n".join(parts) + "\n"


def _saved(found: Json) -> str:
    start = f"{found['system']}: at verification rate {found['verification_rate']:.3f}"
    rates, among = found["verified_discard_rate"], found["constant_verification_rates"]
    if among is None:
        return f"{start} there is no constant k to compare with."
    if rates["constant"] is None:
        low, high = among
        return f"{start}, outside the range of constant k ({low:.3f} to {high:.3f}): no comparison."
    percent = rates["reduction_percent"]
    less = "fewer" if (percent or 0) >= 0 else "more"
    change = "" if percent is None else f", {abs(percent):.0f} % {less}"
    return (
        f"{start} it has {rates['own']:.3f} verified slots discarded per committed token, constant "
        f"k {rates['constant']:.3f}{change}."
    )


def _meanings(figures: Json) -> str:
    every = systems_of(figures)
    seeds = every[0]["seeds"]
    counts = sorted({system["milliseconds_a_sentence"]["rounds"] for system in every})
    rounds = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    signature = figures["bleu_signature"]
    return MEANINGS.format(
        over=f"means over {rounds} seeds"
        if seeds
        else f"medians over alternating rounds ({rounds})",
        baseline=figures["baseline"],
        drawn=DRAWN if seeds else "",
        memory=MEMORY["waiting" in figures["machine"]]
        if any(system.get("memory_mib") for system in every)
        else "",
        bleu=BLEU.format(signature) if signature else "",
    )
