"""A trace file: a JSON line a sentence, in the order of the input, that says what its steps did."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from specdec_plugins.decoding.trace import StepTrace
from specdec_plugins.inference.output import OutputLines
from specdec_plugins.inference.settings import InferenceError
from specdec_plugins.inference.text import STANDARD


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
    """None for a line without words, which no model was run for."""

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
            given = json.loads(line)
        except UnicodeDecodeError:
            raise ValueError("is not UTF-8") from None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"is not JSON ({error})") from None
        where = "the line"
        steps = _field(given, "steps", where, "a list", lambda value: isinstance(value, list))
        return cls(
            source=_field(given, "source", where, *_TEXT),
            output=_field(given, "output", where, *_TEXT),
            steps=[_step(step, f"step {number}") for number, step in enumerate(steps, start=1)],
        )


def open_trace(path: str, output: OutputLines, resume: bool) -> OutputLines:
    """The trace file beside ``output``; a resumed one keeps as many lines as the output has.

    A sentence's trace is to be written before its output, so that a run that was stopped never has
    an output without its trace.

    Raises:
        InferenceError: it cannot be written to, or does not go with the output that is there.
    """
    if path == STANDARD:
        raise InferenceError("--trace -: cannot go to standard output; name a file")
    trace = OutputLines(path, resume, "--trace", output.done)
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
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    yield SentenceTrace.from_json(line)
                except ValueError as error:
                    remedy = "write the trace anew"
                    if not line.endswith(b"\n"):
                        remedy = "the run that wrote it was stopped: go on with its --resume"
                    raise InferenceError(f"{path}, line {number}: {error}; {remedy}") from error
    except OSError as error:
        raise InferenceError(
            f"{path}: cannot be read ({error.strerror}); check the path"
        ) from error
    if not number:
        raise InferenceError(f"{path}: holds no sentence; write it with inference.py --trace")


def _step(given: Any, where: str) -> StepTrace:
    """
    Raises:
        ValueError: what is wrong with the step.
    """
    drafted = _field(
        given,
        "drafted",
        where,
        "a list of strings",
        lambda value: isinstance(value, list) and all(isinstance(token, str) for token in value),
    )
    verify = _count(given, "verify_length", where, len(drafted))
    accepted = _count(given, "accepted", where, verify)
    bonus = _field(
        given,
        "bonus",
        where,
        "a string or null",
        lambda value: isinstance(value, (str, type(None))),
    )
    if bonus is None and not accepted:
        raise ValueError(f"{where} committed nothing")
    milliseconds = _field(given, "milliseconds", where, "a number from 0 on", _is_duration)
    parents = given.get("parents")
    if parents is not None:
        _field(given, "parents", where, "a tree", lambda value: _is_tree(value, len(drafted)))
    return StepTrace(drafted, verify, accepted, bonus, milliseconds, parents)


def _field(given: Any, name: str, where: str, what: str, fits: Callable[[Any], bool]) -> Any:
    """
    Raises:
        ValueError: there is no such field, or it is of another kind.
    """
    if not isinstance(given, dict):
        raise ValueError(f"{where} is not an object")
    if name not in given:
        raise ValueError(f'{where} has no "{name}"')
    if not fits(given[name]):
        raise ValueError(f'"{name}" of {where} is not {what}')
    return given[name]


_TEXT = ("a string", lambda value: isinstance(value, str))


def _count(given: Any, name: str, where: str, most: int) -> int:
    # Of its type, since True is an int too.
    return int(
        _field(
            given,
            name,
            where,
            f"a whole number from 0 to {most}",
            lambda value: type(value) is int and 0 <= value <= most,
        )
    )


def _is_tree(value: Any, size: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) == size
        and all(type(place) is int and -1 <= place < size for place in value)
    )


def _is_duration(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= sys.float_info.max
