"""How many outputs that should be the same differ, and how close the call was where they do."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch
from tqdm import tqdm

from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import penalised
from specdec_plugins.evaluation.texts import read_text
from specdec_plugins.files.lines import Line
from specdec_plugins.inference import Translator

Tokens = list[str]
WIDTH = 48
"""Columns of the title of a row."""


def lines_with_words(path: str, most: int | None = None) -> list[Line]:
    """Return the lines that have words, of the first ``most`` of a text.

    Raises:
        InferenceError: they cannot be read, or there are none.
        ValueError: no such number of lines.
    """
    return [line for line in read_text(path, most) if line.text.strip()]


def decode(translator: Translator, lines: Sequence[Line]) -> list[Tokens]:
    """Return the output for each line, in tokens where the translator keeps them (``keep_bpe``)."""
    strategy = translator.settings.strategy
    results = translator.translate(lines)
    bar = tqdm(results, total=len(lines), desc=strategy, leave=False, disable=None)
    return [translation.text.split() for translation in bar]


def head(title: str) -> str:
    """Return the first line of a table of :func:`row`."""
    return f"{title:{WIDTH}} | lines that differ | gap: max | median"


def row(title: str, gaps: list[float], lines: int) -> str:
    """Return what was compared, how many of its lines differ, and their gaps in nats."""
    rate = f"{len(gaps)} ({100 * len(gaps) / lines:.1f} %)"
    told = f"{max(gaps):8.2g} | {statistics.median(gaps):6.2g}" if gaps else f"{'':8} | {'':6}"
    return f"{title:{WIDTH}} | {rate:>17} | {told}".rstrip()


def gaps_between(
    reference: Translator, lines: list[Line], found: list[Tokens], expected: list[Tokens]
) -> list[float]:
    """Return the gap of each line whose outputs differ, in nats."""
    outputs = zip(lines, found, expected, strict=True)
    return [gap(reference, line, a, b) for line, a, b in outputs if a != b]


def gap(reference: Translator, line: Line, a: Tokens, b: Tokens) -> float:
    """Return the difference in nats by which the verifier prefers one of two outputs where they
    first differ."""
    generator = reference.generator
    assert isinstance(generator, SpeculativeGenerator)
    assert generator.model is not None
    dictionary = reference.codec.target
    source = reference.codec.encode(line)
    assert source is not None
    first = next(i for i, (x, y) in enumerate(zip([*a, ""], [*b, ""])) if x != y)
    tokens = reference.codec.tokens
    begin = dictionary.eos() if tokens.begin is None else tokens.begin
    prefix = [begin, *tokens.forced, *map(dictionary.index, a[:first])]
    options = [dictionary.index(t[first]) if first < len(t) else dictionary.eos() for t in (a, b)]
    with torch.no_grad():
        logits, _ = generator.model(
            source[None], torch.tensor([len(source)]), torch.tensor([prefix])
        )
    penalty, committed = generator.limits.repetition_penalty, torch.tensor([prefix[1:]]).long()
    none, alone = committed[:, :0], torch.ones(1, 1, dtype=torch.bool)
    known = torch.tensor([committed.size(1)])
    last = penalised(logits[:, -1:], penalty, committed, known, none, alone)
    scores = last[0, 0].log_softmax(-1)
    return abs(float(scores[options[0]] - scores[options[1]]))
