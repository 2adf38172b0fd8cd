"""A trace file: a JSON line a sentence, in the order of the input, that says what its steps did."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

import msgspec

from specdec_plugins.decoding.step_result import StepTrace
from specdec_plugins.files.errors import InferenceError, explained
from specdec_plugins.files.lines import STANDARD, OutputLines


@dataclass(frozen=True)
class SentenceTrace:
    """A line of a trace file: an object of these fields, each step an object of a step's.

    Line n of the file belongs to line n of the input and of the output.
    """

    source: str
    """The line as it was read."""
    output: str
    """Its translation as it was written."""
    steps: list[StepTrace]
    """The steps; none for a line without words, which no model was run for."""
    forced: list[str] = field(default_factory=list)
    """The tokens of the target prefix, which came before the first step."""

    def to_json(self) -> str:
        """The line, without a line feed."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str | bytes) -> SentenceTrace:
        """
        Raises:
            ValueError: what is wrong with the line.
        """
        try:
            # Not msgspec's decoder, which refuses "\ud800": text may hold half of a pair.
            given = json.loads(line)
        except UnicodeDecodeError:
            raise ValueError("is not UTF-8") from None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"is not JSON ({error})") from None
        try:
            sentence = msgspec.convert(given, cls)
            for number, step in enumerate(sentence.steps):
                if fault := _fault(step):
                    raise ValueError(f"{fault} - at `$.steps[{number}]`")
        except (ValueError, OverflowError) as error:
            raise ValueError(f"is no trace of a sentence ({error})") from None
        return sentence


def open_trace(path: str, output: OutputLines, resume: bool) -> OutputLines:
    """The trace file beside ``output``; a resumed one keeps as many lines as the output has.

    A sentence's trace is to be written before its output, so that a run that was stopped never has
    an output without its trace.

    Raises:
        InferenceError: it cannot be written to, or does not go with the output that is there.
    """
    if path == STANDARD:
        raise InferenceError("--trace -: cannot go to standard output; name a file")
    trace = OutputLines(path, resume, "--trace")
    if trace.done < output.done:
        raise InferenceError(
            f"--trace {path}: has {trace.done} lines, {output.path} already {output.done}; name "
            "the trace of that output, or begin anew without --resume"
        )
    return trace


def read_trace(path: str) -> Iterator[SentenceTrace]:
    """The sentences of a trace file, one by one.

    Raises:
        InferenceError: a file that cannot be read or holds no sentence, or a line that is none.
    """
    number = 0
    with explained(f"{path}: cannot be read", "check the path"), open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield SentenceTrace.from_json(line)
            except ValueError as error:
                remedy = "write the trace anew"
                if not line.endswith(b"\n"):
                    remedy = "the run that wrote it was stopped: go on with its --resume"
                raise InferenceError(f"{path}, line {number}: {error}; {remedy}") from error
    if not number:
        raise InferenceError(f"{path}: holds no sentence; write it with inference.py --trace")


def _fault(step: StepTrace) -> str | None:
    """What is wrong with a step whose fields are of the right types."""
    size = len(step.drafted)
    if not 0 <= step.verify_length <= size:
        return f"`verify_length` is not from 0 to {size}, as many as were drafted"
    if not 0 <= step.accepted <= step.verify_length:
        return f"`accepted` is not from 0 to {step.verify_length}, as many as were verified"
    if not step.committed:
        return "nothing was committed"
    if not 0 <= step.milliseconds <= sys.float_info.max:
        return "`milliseconds` is no duration"
    if step.parents is not None and (
        len(step.parents) != size or not all(-1 <= place < size for place in step.parents)
    ):
        return "`parents` is no tree of what was drafted"
    for name in ("p", "q", "p_acc", "head"):
        values = getattr(step, name)
        if values is not None and len(values) != size:
            return f"`{name}` is not of {size} tokens, as many as were drafted"
        if not all(value is None or 0 <= value <= 1 for value in values or ()):
            return f"`{name}` holds what is no probability"
    return None
