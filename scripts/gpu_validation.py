"""What ``scripts/train_on_gpu.py`` measures, and the greedy output that it distils."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import sacrebleu
import symbols
import torch
from gpu_training import EOS, Text
from texts import aligned, lines_of
from torch import Tensor, nn

from specdec_plugins.decoding.resident.state import Kind, Shape
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.engines.engine import bucket
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.lines import Line

if TYPE_CHECKING:
    from train_on_gpu import Bench

NUMBER = re.compile(r"\b\d+\b")
STUTTER = re.compile(r"\b(\w+)( \1\b){2}")
"""A word three times in a row."""
LONG_INPUTS = 200
"""The number of joined inputs."""
WORDS = (80, 150)
"""Their length in words, at least and at most."""
DRAFTED_LINES = 512
FEW = 20
"""Lines of a rehearsal."""


class ValidationText(NamedTuple):
    """Sentences, their references, and sentences with the strings that they require."""

    sources: Sequence[str]
    references: Sequence[str]
    table: Sequence[Sequence[str]]

    @classmethod
    def read(cls, valid: Sequence[Path], symbols: Path) -> ValidationText:
        """Read a text and its translation, none of whose lines is blank, and a list of symbols."""
        sources, references = aligned(*valid)
        for number, line in enumerate(sources, 1):
            if not line.strip():
                raise InferenceError(f"{valid[0]}: line {number} is blank; leave it out")
        return cls(sources, references, [line.split("\t") for line in lines_of(symbols)])

    def first(self, count: int | None) -> ValidationText:
        """Return the first lines of each, or all."""
        return ValidationText(*(lines[:count] for lines in self))


@torch.no_grad()
def greedy(generator: Any, sources: Sequence[Sequence[int]], rows: int) -> list[list[int]]:
    """Return the greedy output of each source, EOS included, by recorded steps.

    Sources of ``rows`` sentences are read and decoded together, to the end of the longest output:
    no row waits for the host.
    """
    loop = generator._resident
    buckets = loop.engine.buckets
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    outputs: list[list[int]] = [[] for _ in sources]
    for start in range(0, len(order), rows):
        some = order[start : start + rows]
        longest = len(sources[some[-1]])
        size = bucket(buckets.source, longest)
        width = bucket(buckets.width, 2 * longest + 20)
        reader = loop.recorded(Kind(), Shape(rows, 0, size))
        step = loop.recorded(Kind(), Shape(rows, width, size))
        reader.begin([(list(sources[i]), width - 2) for i in some])
        reader.run()
        index = list(range(len(some)))
        step.state.going.zero_()
        step.state.counts.zero_()
        step.take(reader, index, index)
        columns: list[Tensor] = []
        # The device is asked at every eighth step: an answer costs as much as a step.
        while len(columns) < width - 1 and (len(columns) % 8 or bool(step.state.going.any())):
            step.run()
            column = step.outcome.parts["tokens"][:, 0]
            columns.append(column.clone())
        for i, tokens in zip(some, torch.stack(columns, 1).tolist()):
            if EOS in tokens:
                del tokens[tokens.index(EOS) + 1 :]
            outputs[i] = tokens
    return outputs


def distil(bench: Bench, best: int) -> Text:
    """Return the verifier's greedy output for the best sources, and for as many of --more."""
    more = np.arange(bench.first, min(bench.both, bench.first + best))
    chosen = np.concatenate([np.arange(min(bench.first, best)), more])
    chosen = chosen[bench.text.sizes[chosen, 0] <= 128]
    ids = torch.from_numpy(chosen).to(bench.device)
    rows = bench.text.padded(2 * ids, 128).tolist()
    sources = [row[: row.index(EOS) + 1] for row in rows]
    outputs = greedy(bench.generator(), sources, bench.args.rows)
    tokens = list[int]()
    for source, output in zip(sources, outputs, strict=True):
        if output[-1] == EOS:
            tokens += source + output
    text = Text(np.array(tokens, np.uint16), bench.device)
    bench.note("distilled", pairs=len(text.sizes), tokens=len(tokens))
    return text


def validate(bench: Bench, count: int | None) -> None:
    """Note BLEU, numbers, symbols and repeated words of the output, and tokens a step.

    ``count``: lines of each text; None: all.
    """
    sources, references, table = bench.valid.first(count)
    inputs = joined(sources)
    generator = bench.generator()
    outputs = translated(bench, generator, sources)
    long_outputs = translated(bench, generator, inputs)
    with_symbols = translated(bench, generator, [sentence for sentence, _ in table])
    required = [symbols.symbols_of(strings) for _, strings in table]
    stutters = [text for text in long_outputs if STUTTER.search(text)]
    words_in = " ".join(inputs).split()
    words_out = " ".join(long_outputs).split()
    bench.note(
        "validation",
        lines=len(sources),
        bleu=sacrebleu.corpus_bleu(outputs, [references]).score,
        numbers=share(map(numbers, sources), map(numbers, outputs)),
        symbols=share(required, map(symbols.symbols_of, with_symbols)),
        repeats=[len(stutters), len(inputs)],
        length_ratio=len(words_out) / len(words_in),
    )
    drafting = bench.generator(drafts=True)
    drafting.statistics = DecodingStatistics()
    for start in range(0, min(DRAFTED_LINES, len(sources)), 64):
        ids = encoded(bench, sources[start : start + 64])
        tokens = nn.utils.rnn.pad_sequence(ids, True, bench.words.pad(), "left")
        lengths = torch.tensor([len(x) for x in ids])
        net_input = {"src_tokens": tokens, "src_lengths": lengths}
        on_device = {name: tensor.to(bench.device) for name, tensor in net_input.items()}
        drafting.generate([], {"net_input": on_device})
    bench.note("drafts", tokens_a_step=drafting.statistics.acceptance_length)


def encoded(bench: Bench, lines: Sequence[str]) -> list[Tensor]:
    """Return the ids ``(tokens,)`` of lines, none of them blank."""
    ids = [bench.codec.encode(Line(number, line)) for number, line in enumerate(lines, 1)]
    return [tensor for tensor in ids if tensor is not None]


def translated(bench: Bench, generator: Any, lines: Sequence[str]) -> list[str]:
    """Return the greedy translations of lines."""
    ids = [tensor.tolist() for tensor in encoded(bench, lines)]
    outputs = greedy(generator, ids, bench.args.rows)
    return [bench.codec.decode(torch.tensor(tokens)) for tokens in outputs]


def joined(lines: Sequence[str]) -> list[str]:
    """Return inputs of neighbouring lines, each of 80 to 150 words; lengths are spread evenly.

    A text with fewer words is one input.
    """
    made = list[str]()
    words = list[str]()
    low, high = WORDS
    for line in lines:
        words += line.split()
        wanted = low + (high - low) * len(made) // LONG_INPUTS
        if len(words) >= wanted and len(made) < LONG_INPUTS:
            made.append(" ".join(words[:high]))
            words = []
    return made or [" ".join(words)]


def numbers(text: str) -> Counter[str]:
    """Return how often a text has each number."""
    return Counter(NUMBER.findall(text))


def share(wanted: Iterable[Counter[str]], got: Iterable[Counter[str]]) -> list[int]:
    """Return how many of the wanted things are there, and how many were wanted."""
    pairs = list(zip(wanted, got, strict=True))
    present = sum((a & b).total() for a, b in pairs)
    return [present, sum(a.total() for a, _ in pairs)]
