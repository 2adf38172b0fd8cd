"""Lines of a text that are held out, left out and refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from conftest import make_dictionary
from helpers.runs.jobs import pair_job

from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.output import JsonObject
from specdec_plugins.inference.text import TextCodec
from specdec_plugins.jobs.make_pair import text
from specdec_plugins.jobs.make_pair.job import PairJob
from specdec_plugins.jobs.make_pair.text import (
    LIMITS,
    check_enough,
    collect,
    frequent_tokens,
)


def write(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


def segmented(job: PairJob) -> JsonObject:
    words = make_dictionary()
    translator = SimpleNamespace(codec=TextCodec(words, words, longest=10))
    with patch.object(text, "load", lambda *_: translator):
        return text.segment(job, {})


def text_of(count: int) -> list[str]:
    return [f"w{n % 20} w{n // 20 % 20} w{n // 400 % 20}" for n in range(count)]


def test_held_out_lines_are_not_learnt(tmp_path: Path) -> None:
    job, lines = pair_job(tmp_path), text_of(600) * 2
    write(job.sources, [*lines, "", "  ", " ".join(["w1"] * 10)])
    facts = segmented(job)
    written = job.layout.sources.read_text("utf-8").splitlines()
    counts = facts["lines"]
    held_out = counts["valid"]
    assert set(written) == set(lines)
    assert not set(written[:held_out]) & set(written[held_out:])
    assert written[: counts["valid"]] == job.layout.valid_text.read_text("utf-8").splitlines()
    assert len(written) == sum(counts.values())
    assert facts["too_long"] == 1


def test_lines_that_differ_in_blanks_alone_are_not_learnt(tmp_path: Path) -> None:
    """They are the same tokens."""
    job, lines = pair_job(tmp_path), text_of(300)
    others = [line.replace(" ", blank) for line in lines for blank in ("  ", "\t", " \u00a0")]
    write(job.sources, [*lines, *others])
    held_out = segmented(job)["lines"]["valid"]
    written = job.layout.sources.read_text("utf-8").splitlines()
    assert not set(written[:held_out]) & set(written[held_out:])


def test_texts_that_are_refused(tmp_path: Path) -> None:
    job = pair_job(tmp_path)
    write(job.sources, text_of(99))
    with pytest.raises(InferenceError):
        check_enough(job.sources)
    write(job.sources, text_of(100))
    check_enough(job.sources)
    strange = [f"ein Hund {n}" for n in range(60)]
    for lines in ([*text_of(140), *strange], text_of(1) * 150):
        write(job.sources, lines)
        with pytest.raises(InferenceError):
            segmented(job)


def collected(job: PairJob, pairs: list[tuple[str, str]]) -> Any:
    write(job.layout.sources, [source for source, _ in pairs])
    write(job.layout.outputs, [output for _, output in pairs])
    return collect(job, {"valid": 1, "train": len(pairs) - 1})


def test_outputs_that_run_on_are_left_out(tmp_path: Path) -> None:
    job, limit = pair_job(tmp_path), LIMITS.max_length(3, 100)
    pairs = [("a b", "A B")] * 9 + [("a b", " ".join(["x"] * limit)), ("c", ""), ("d e", "D")]
    facts = collected(job, pairs)
    assert facts["learned"] == {"valid": 1, "train": 9}
    assert facts["run_on"] == 1
    assert job.layout.learned.read_text("utf-8").splitlines() == ["A B"] * 8 + ["D"]


def test_a_verifier_that_does_not_end_is_refused(tmp_path: Path) -> None:
    endless = ("a b", " ".join(["x"] * 40))
    with pytest.raises(InferenceError):
        collected(pair_job(tmp_path), [endless] * 9 + [("a", "A")])


def test_as_many_tokens_are_drafted_as_the_text_needs(tmp_path: Path) -> None:
    path = tmp_path / "text"
    frequent = " ".join(f"f{n}" for n in range(90))
    write(path, [frequent] * 100 + [" ".join(f"r{n}" for n in range(9))])
    assert frequent_tokens(path, entries=1000) is None  # a hundred are more than there are
    write(path, [frequent] * 1000 + [f"s{n}" for n in range(40)])
    assert frequent_tokens(path, entries=1000) == 100
    assert frequent_tokens(path, entries=130) is None
