"""Trace files, one JSON line a sentence, and the page made of them.

The page is HTML that is complete in itself and fetches nothing.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import islice
from operator import eq

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined

from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.decoding.step_result import StepTrace
from specdec_plugins.files.errors import InferenceError, counted
from specdec_plugins.files.lines import OutputLines

#: Every line of a trace begins so.
BEGINNING = b'{"source": '


@dataclass(frozen=True)
class SentenceTrace:
    """A line of a trace file: line n belongs to line n of the input and of the output."""

    #: The line as it was read.
    source: str
    #: Its translation as it was written.
    output: str
    #: The steps; none for a line without words, which no model was run for.
    steps: list[StepTrace]
    #: The tokens of the target prefix, which came before the first step.
    forced: list[str] = field(default_factory=list)
    sampled: bool = False

    def to_json(self) -> str:
        """Return the line, without a line feed."""
        return json.dumps(asdict(self), ensure_ascii=False)


def open_trace(path: str, output: OutputLines, resume: bool) -> OutputLines:
    """Return the trace file beside ``output``; a resumed one keeps as many lines as the output.

    Write a sentence's trace before its output, so that a run that is stopped never leaves an output
    without its trace.
    """
    trace = OutputLines(path, resume)
    if resume and os.path.exists(path):
        _check_trace(path, trace.done, output)
    if trace.done < output.done:
        raise InferenceError(
            f"--trace {path}: has {trace.done} lines, {output.path} already {output.done}; name "
            "the trace of that output, or begin anew without --resume"
        )
    return trace


def _check_trace(path: str, count: int, output: OutputLines) -> None:
    """Refuse a file, of ``count`` complete lines, that is not the trace of what is resumed: its
    outputs are those of the output, and it may be a line ahead."""
    with open(path, "rb") as file:
        start = file.read(len(BEGINNING))
    ours = BEGINNING.startswith(start) and count <= output.done + 1
    if ours:
        outputs = [f"{sentence.output}\n".encode() for sentence in islice(read_trace(path), count)]
        with suppress(FileNotFoundError), open(output.path, "rb") as lines:
            ours = all(map(eq, outputs, islice(lines, output.done)))
    if not ours:
        raise InferenceError(f"--trace {path}: is not the trace of {output.path}; name another")


def read_trace(path: str) -> Iterator[SentenceTrace]:
    """Yield the sentences of a trace file."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                # Not msgspec's decoder, which refuses "\ud800": text may hold half of a pair.
                sentence = msgspec.convert(json.loads(line), SentenceTrace)
                if not all(map(_is_sound, sentence.steps)):
                    raise ValueError("a step contradicts itself")
            except (ValueError, RecursionError, OverflowError) as error:
                raise InferenceError(
                    f"{path}, line {number}: is not the trace of a sentence ({error}); go on with "
                    "the --resume of the run that wrote it, or write it anew"
                ) from error
            yield sentence


def _is_sound(step: StepTrace) -> bool:
    size = len(step.drafted)
    figures = (step.parents, step.p, step.q, step.p_acc)
    whole = all(values is None or len(values) == size for values in figures)
    whole &= 0 <= step.accepted <= step.verify_length <= size and step.committed > 0
    return whole and all(-1 <= parent < index for index, parent in enumerate(_parents(step)))


@dataclass
class TraceTotals(DecodingStatistics):
    """Counts over all sentences of a trace: those of the run itself, but that a step which verified
    the rest of an earlier draft, or what a copy wrote, counts as one pass of the drafter. Times and
    the histogram are left out.
    """

    #: Lines without words, which no step was taken for.
    blank_lines: int = 0
    #: Steps by acceptance length.
    lengths: Counter[int] = field(default_factory=Counter)
    #: Drafts in which a token at this depth, from 1, was verified.
    verified_at: Counter[int] = field(default_factory=Counter)
    #: Drafts in which one was accepted.
    accepted_at: Counter[int] = field(default_factory=Counter)

    def add(self, sentence: SentenceTrace) -> None:
        """Count a line of a trace."""
        self.blank_lines += not sentence.steps
        self.sentences += bool(sentence.steps)
        self.forced_tokens += len(sentence.forced)
        self.verifier_calls += bool(sentence.forced)
        for step in sentence.steps:
            self.steps += 1
            self.verifier_calls += 1
            self.drafter_calls += bool(step.drafted)
            self.drafted_tokens += len(step.drafted)
            self.verified_tokens += step.verify_length
            self.accepted_tokens += step.accepted
            self.committed_tokens += step.committed
            self.lengths[step.committed] += 1
            self.verified_at.update(set(_depths(step)[: step.verify_length]))
            self.accepted_at.update(range(1, step.accepted + 1))


def _parents(step: StepTrace) -> Sequence[int]:
    """Return the index of each drafted token's parent; -1 for the root."""
    if step.parents is None:
        return range(-1, len(step.drafted) - 1)
    return step.parents


def _depths(step: StepTrace) -> list[int]:
    """Return the depth of each drafted token, from 1: in a chain its number."""
    depths = [0]  # the root's first: a token's is at its index + 1
    for parent in _parents(step):
        depths.append(1 + depths[parent + 1])
    return depths[1:]


def branches(step: StepTrace) -> list[tuple[int, list[int]]]:
    """Return a draft as lines to draw: the depth of a line's first token, and its tokens' indices.

    A chain is one line. In a tree the line of a token goes on with its first child; each other
    child begins a line of its own below.
    """
    lines: list[tuple[int, list[int]]] = []
    line_of: dict[int, tuple[int, list[int]]] = {-1: (0, [])}
    for index, (depth, parent) in enumerate(zip(_depths(step), _parents(step))):
        line = line_of[parent]
        if line[1][-1:] != [parent]:
            below = lines.index(line) + 1 if line in lines else len(lines)
            line = depth - 1, []
            lines.insert(below, line)
        line[1].append(index)
        line_of[index] = line
    return lines


def build_page(sentences: Iterable[SentenceTrace], limit: int, name: str) -> str:
    """Return a page that shows ``limit`` sentences and counts all; ``name`` is the trace's.

    All text is escaped, and the page itself forbids scripts and outer files.
    """
    totals = TraceTotals()
    shown = list[SentenceTrace]()
    for sentence in sentences:
        totals.add(sentence)
        if len(shown) < limit:
            shown.append(sentence)
    environment = Environment(
        loader=PackageLoader("specdec_plugins.inference", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("trace_page.html").render(
        name=name,
        counts=totals,
        shown=shown,
        left_out=totals.sentences + totals.blank_lines - len(shown),
        counted=counted,
        branches=branches,
    )
