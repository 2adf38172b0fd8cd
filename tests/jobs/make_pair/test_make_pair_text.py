"""What of a text is held out, left out, warned of and refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import make_dictionary

from specdec_plugins.files.errors import InferenceError
from specdec_plugins.inference.text import TextCodec
from specdec_plugins.jobs.make_pair.job import PairJob
from specdec_plugins.jobs.make_pair.text import (
    LIMITS,
    check_enough,
    collect,
    frequent_tokens,
    segment,
)

Write = Callable[[list[str]], PairJob]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(lines: list[str]) -> PairJob:
        sources = tmp_path / "text"
        sources.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        job = PairJob(tmp_path, sources, tmp_path / "out", tmp_path, ("en", "de"), heads=True)
        job.layout.work.mkdir(parents=True)
        return job

    return written


def translator() -> Any:
    words = make_dictionary()
    return SimpleNamespace(codec=TextCodec(words, words, longest=10))


def ignore(_: int) -> None:
    """Nobody sees how far it is."""


def text_of(count: int) -> list[str]:
    return [f"w{n % 20} w{n // 20 % 20} w{n // 400 % 20}" for n in range(count)]


def test_held_out_lines_are_not_learnt(write: Write) -> None:
    lines = text_of(600) * 2
    job = write([*lines, "", "  ", " ".join(["w1"] * 10)])
    told: list[int] = []
    facts = segment(job, translator(), told.append)
    found = job.layout.sources.read_text("utf-8").splitlines()
    counts = facts["lines"]
    held_out = counts["valid"] + counts["head"]
    assert set(found) == set(lines)
    assert not set(found[:held_out]) & set(found[held_out:])
    assert found[: counts["valid"]] == job.layout.valid_text.read_text("utf-8").splitlines()
    assert len(found) == sum(counts.values())
    assert facts["too_long"] == 1
    assert facts["unknown"] == 0


def test_text_that_is_too_little_is_refused(write: Write) -> None:
    with pytest.raises(InferenceError, match="has 99 lines with words; give at least 100"):
        check_enough(write(text_of(99)).sources)


@pytest.mark.parametrize(("strange", "refused"), [(10, False), (60, True)])
def test_text_of_another_language(
    write: Write, strange: int, refused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    job = write([*text_of(140), *(f"ein Hund {n}" for n in range(strange))])
    figure = r"of \d+ tokens the dictionary lacks \d+ \(\d+\.\d %\)"
    if refused:
        with pytest.raises(InferenceError, match=figure):
            segment(job, translator(), ignore)
    else:
        segment(job, translator(), ignore)
        assert "the dictionary lacks" in caplog.text


def outputs_of(job: PairJob, pairs: list[tuple[str, str]]) -> dict[str, int]:
    job.layout.sources.write_text("".join(f"{source}\n" for source, _ in pairs), "utf-8")
    job.layout.outputs.write_text("".join(f"{output}\n" for _, output in pairs), "utf-8")
    return {"valid": 1, "head": 1, "train": len(pairs) - 2}


def test_outputs_that_run_on_are_left_out(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    job = write([])
    most = LIMITS.max_length(3, 100)
    pairs = [("a b", "A B")] * 9 + [("a b", " ".join(["x"] * most)), ("c", ""), ("d e", "D")]
    caplog.set_level(logging.WARNING)
    facts = collect(job, outputs_of(job, pairs))
    assert facts["kept"] == {"valid": 1, "head": 1, "train": 8}
    assert (facts["run_on"], facts["empty"], facts["repeated"]) == (1, 1, 1)
    assert (job.layout.text / "train.de").read_text("utf-8").splitlines() == ["A B"] * 7 + ["D"]
    assert "of 12 outputs 1 run to the length limit" in caplog.text
    assert "1 of 12 outputs repeat themselves" in caplog.text


def test_outputs_much_longer_than_their_sources(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    job = write([])
    collect(job, outputs_of(job, [("a b", "A B C D"), ("a b", "A B")] * 5))
    assert "VERIFIER: its outputs have 1.5 times" not in caplog.text
    collect(job, outputs_of(job, [("a b", "A B C D E F")] * 5))
    assert "VERIFIER: its outputs have 3.0 times the tokens of their sources" in caplog.text


def test_a_verifier_that_does_not_end_is_refused(write: Write) -> None:
    job = write([])
    endless = outputs_of(job, [("a b", " ".join(["x"] * 40))] * 9 + [("a", "A")])
    with pytest.raises(InferenceError, match="of 10 outputs 9 run to the length limit"):
        collect(job, endless)


def test_as_many_tokens_are_drafted_as_the_text_needs(tmp_path: Path) -> None:
    path = tmp_path / "text"
    frequent = " ".join(f"f{n}" for n in range(90))
    path.write_text(f"{frequent}\n" * 100 + " ".join(f"r{n}" for n in range(9)) + "\n", "utf-8")
    assert frequent_tokens(path, entries=1000) is None  # a hundred are more than there are
    more = "\n".join(f"s{n}" for n in range(40))
    path.write_text(f"{frequent}\n" * 1000 + more, "utf-8")
    assert frequent_tokens(path, entries=1000) == 100
    assert frequent_tokens(path, entries=130) is None
