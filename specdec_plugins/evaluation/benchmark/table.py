"""A benchmark's results in Markdown: a table a batch size, and the fastest against the fastest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specdec_plugins.evaluation.benchmark.results import BatchResult, SystemResult
from specdec_plugins.evaluation.summary import Spread
from specdec_plugins.evaluation.table import format_spread, format_table

NOTE = (
    "Milliseconds of decoding alone, a sentence: medians over alternating rounds ({rounds}), least "
    "to most in brackets, of {sentences} sentences. x: how many times as fast as {baseline} with "
    "as many threads, taken within a round. Acceptance length: tokens committed a step, bonus "
    "token included. Verification rate: verifier calls per committed token. Discard rate: drafted "
    "tokens that were not accepted, per committed token. Memory: the most that the system's "
    "process had, libraries and weights included. Unlike: lines that differ from AR of the same "
    "engine and precision, and from CTranslate2 in float32, each with as many threads.{bleu}\n"
)
BLEU = (
    " BLEU: sacreBLEU {signature}. Tokenised BLEU: of Moses tokens, compounds split, as in the "
    "SpecDec paper."
)


def format_results(
    results: Sequence[BatchResult], machine: str, baseline: str, signature: str | None
) -> str:
    """A table a batch size, under a heading with its conditions, and what the columns mean.

    Args:
        machine: processor and cores.
        signature: of BLEU; None without it.
    """
    counts = sorted({len(system.runs) for result in results for system in result.systems})
    note = NOTE.format(
        rounds=" to ".join(map(str, dict.fromkeys((counts[0], counts[-1])))),
        sentences=results[0].systems[0].first.sentences,
        baseline=baseline,
        bleu=BLEU.format(signature=signature) if signature else "",
    )
    return "\n".join([*(_format_batch(result, machine, baseline) for result in results), note])


def _format_batch(result: BatchResult, machine: str, baseline: str) -> str:
    head = [
        *("system", "threads", "ms a sentence", f"x {baseline}", "BLEU", "tokenised BLEU"),
        *("acceptance length", "verification rate", "discard rate", "memory, MiB", "unlike AR"),
        "unlike CTranslate2 float32",
    ]
    lines = [
        f"### {machine}, batch {result.batch}",
        "",
        *format_table(head, (_row(system) for system in result.systems)),
        "",
        *_leaders(result),
    ]
    return "\n".join(lines) + "\n"


def _row(result: SystemResult) -> list[str]:
    first, of, bleu = result.first, result.first.sentences, result.bleu
    return [
        result.system.name,
        str(result.system.threads),
        format_spread(result.milliseconds, _digits(result.milliseconds)),
        format_spread(result.over_baseline),
        _figure(bleu.sacrebleu if bleu else None, 1),
        _figure(bleu.tokenised if bleu else None, 1),
        _figure(first.acceptance_length, 2),
        _figure(first.verification_rate, 3),
        _figure(first.discard_rate, 3),
        f"{result.peak_memory:.0f}",
        *("" if n is None else f"{n}/{of}" for n in (result.unlike_ar, result.unlike_ctranslate2)),
    ]


def _figure(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _digits(spread: Spread) -> int:
    """Decimal places for three figures or so."""
    return 2 if spread.median < 10 else 1


def _leaders(result: BatchResult) -> Iterator[str]:
    for leader in result.leaders():
        own, other = leader.system.system, leader.over.system
        yield (
            f"- {own.label}, the fastest {own.family}, is {format_spread(leader.ratio)} times as "
            f"fast as {other.label}, the fastest {other.family}."
        )
