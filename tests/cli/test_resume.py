"""``scripts/inference.py``: runs that were stopped go on where they were; traces go with them."""

from __future__ import annotations

import json
import resource
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.runs.inference_runs import SENTENCES, RunScript, lines_of, one_error

from specdec_plugins.cli import inference
from specdec_plugins.files.lines import OutputLines
from specdec_plugins.inference import Settings, load_translator
from specdec_plugins.inference.trace_page import SentenceTrace, TraceTotals, read_trace
from specdec_plugins.inference.translator import Translator

DRAWN = "--sampling --temperature 3 --seed 2"


def cut(path: Path, lines: int, torn: bytes = b"") -> list[bytes]:
    """Leave the first lines of a file and a torn one; return all that it held."""
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:lines]) + torn)
    return whole


@pytest.mark.parametrize(
    ("flags", "lines", "torn"),
    [
        ("--batch 1", 0, b""),
        ("--batch 1", 9, b""),
        ("--batch 4", 7, b"w1"),
        (f"{DRAWN} --batch 1", 4, b""),
        (f"{DRAWN} --batch 2 --strategy AR", 8, b""),
    ],
)
def test_resume(
    run: RunScript, unfinished: RunScript, tmp_path: Path, flags: str, lines: int, torn: bytes
) -> None:
    """The output, drawn or not, does not depend on where a run was stopped."""
    out = tmp_path / "out.txt"
    assert unfinished(*flags.split()) == 0
    whole, stamps = b"".join(cut(out, lines, torn)), []
    for _ in ("the rest", "nothing"):
        assert run("--resume", *flags.split()) == 0
        assert out.read_bytes() == whole
        stamps.append(out.stat().st_mtime_ns)
    assert stamps[0] == stamps[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.txt", "out.txt.resume"]


def test_batches_of_a_resumed_run_are_those_of_the_first(
    run: RunScript, unfinished: RunScript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else low precision gives other lines. A window is 128 lines here."""
    source, out, resume = (tmp_path / name for name in ("in.txt", "out.txt", "out.txt.resume"))
    rows = [f"w{i % 20} w{i // 20}" + " w3" * (i * 5 % 8) for i in range(131)]
    source.write_text("\n".join(rows) + "\n")
    batches: list[list[str]] = []
    decode = Translator._decode

    def noted(self: Translator, items: list[Any]) -> None:
        batches.append([item.line.text for item in items])
        return decode(self, items)

    monkeypatch.setattr(Translator, "_decode", noted)
    usual = {"batch": "2", "input_path": str(source), "strategy": "AR", "max_len_b": "2"}
    assert unfinished(**usual) == 0
    whole, first, begun = out.read_bytes(), [*batches], resume.read_bytes()
    for stop in (127, 129):
        batches.clear()
        resume.write_bytes(begun)
        cut(out, stop)
        assert run("--resume", **usual) == 0
        assert out.read_bytes() == whole
        assert batches == [rows for rows in first if rows in batches]
        assert len(batches) == (131 - stop // 128 * 128 + 1) // 2


OTHERS: tuple[dict[str, str], ...] = (
    {"batch": "4"},
    {"AR_path": "nameless.pt"},
    {"seed": "3"},
    {"input_path": "other.txt"},
    {"trace": "trace.jsonl"},
    {},  # without the resume file
)


@pytest.mark.parametrize("finished", [True, False])
def test_another_run_is_refused(
    run: RunScript,
    unfinished: RunScript,
    world: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    finished: bool,
) -> None:
    """A finished output is no exception, though another text has as many lines."""
    monkeypatch.chdir(tmp_path)
    Path("nameless.pt").symlink_to(world / "nameless.pt")
    Path("other.txt").write_text("\n".join([*SENTENCES[:2], "w1", *SENTENCES[3:]]) + "\n")
    flags = ("-s", "en", "-t", "de")
    assert (run if finished else unfinished)("--resume", *flags) == 0
    if not finished:
        cut(Path("out.txt"), 5, b"w1 w")
    for changes in OTHERS:
        if not changes:
            Path("out.txt.resume").unlink()
        before = {path: path.read_bytes() for path in Path().iterdir()}
        assert run("--resume", *flags, **changes) == 1
        assert {path: path.read_bytes() for path in Path().iterdir()} == before


def test_a_model_that_is_replaced_while_it_is_loaded(
    run: RunScript, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the output would be described by a model that did not make it."""
    path = tmp_path / "verifier.pt"
    path.write_bytes((world / "verifier.pt").read_bytes())

    def load_and_replace(settings: Settings, quiet: bool) -> Translator:
        translator = load_translator(settings)
        path.write_bytes((world / "nameless.pt").read_bytes())
        return translator

    monkeypatch.setattr(inference, "load", load_and_replace)
    assert run(AR_path=str(path)) == 1
    assert not (tmp_path / "out.txt").exists()


def test_a_second_run_is_refused_while_the_first_is_at_work(
    run: RunScript, tmp_path: Path, greedy: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever file it shares with the first."""
    files = {"--output-path": "out.txt", "--trace": "trace", "--stats-json": "stats"}
    mine = {name: str(tmp_path / path) for name, path in files.items()}
    write, second = OutputLines.write, list[int]()

    def with_others(self: OutputLines, text: str) -> None:
        monkeypatch.setattr(OutputLines, "write", write)
        for flag in files:
            others = {name: f"{path}.other" for name, path in mine.items()} | {flag: mine[flag]}
            second.append(run(*(word for pair in others.items() for word in pair)))
        write(self, text)

    monkeypatch.setattr(OutputLines, "write", with_others)
    assert run(*(word for pair in mine.items() for word in pair)) == 0
    assert second == [1, 1, 1]
    assert lines_of(tmp_path / "out.txt") == greedy
    assert [sentence.output for sentence in read_trace(mine["--trace"])] == greedy
    assert json.loads(Path(mine["--stats-json"]).read_text())["sentences"] == len(SENTENCES)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files.values())


@pytest.mark.parametrize("content", [b"{}\n", b"\xff"])
def test_a_file_in_the_place_of_the_resume_file_stays(
    run: RunScript, tmp_path: Path, content: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.txt.resume"
    path.write_bytes(content)
    assert run() == 1
    assert str(path) in one_error(capfd)
    assert path.read_bytes() == content


def test_trace(run: RunScript, tmp_path: Path) -> None:
    """A line each, from which the output and the report's figures follow."""
    lines = [line for sentence in SENTENCES for line in (sentence, " ")]
    (tmp_path / "in").write_text("\n".join(lines) + "\n")
    path, stats = tmp_path / "trace.jsonl", tmp_path / "stats.json"
    flags = ["--trace", str(path), "--stats-json", str(stats), "--batch", "4"]
    assert run(*flags, "--target-prefix", "w4 w2", input_path=str(tmp_path / "in")) == 0
    traced, totals = list(read_trace(str(path))), TraceTotals()
    assert [sentence.source for sentence in traced] == lines
    assert [sentence.output for sentence in traced] == lines_of(tmp_path / "out.txt")
    for sentence in traced[::2]:
        totals.add(sentence)
        tokens = [*sentence.forced]
        for step in sentence.steps:
            tokens += step.drafted[: step.accepted] + [step.bonus] * (step.bonus is not None)
        # fairseq leaves <s> out of text.
        assert " ".join(token for token in tokens[:-1] if token != "<s>") == sentence.output
    report = json.loads(stats.read_text())
    names = ("steps", "committed_tokens", "verifier_calls", "forced_tokens")
    for name in (*names, "drafted_tokens", "accepted_tokens"):
        assert getattr(totals, name) == report[name]


def without_times(path: Path) -> list[SentenceTrace]:
    return [
        replace(sentence, steps=[replace(step, milliseconds=0) for step in sentence.steps])
        for sentence in read_trace(str(path))
    ]


@pytest.mark.parametrize(("batch", "torn"), [("1", b""), ("4", b'{"source": "w')])
def test_trace_is_resumed_with_its_output(
    batch: str,
    torn: bytes,
    run: RunScript,
    unfinished: RunScript,
    tmp_path: Path,
    greedy: list[str],
) -> None:
    path, out = tmp_path / "trace.jsonl", tmp_path / "out.txt"
    assert unfinished("--trace", str(path), batch=batch) == 0
    whole = without_times(path)
    cut(out, 4, b"w1 w")
    first = cut(path, 5, torn)
    assert run("--resume", "--trace", str(path), batch=batch) == 0
    assert lines_of(out) == greedy
    assert without_times(path) == whole
    if batch == "1":  # else the whole window is done again
        assert path.read_bytes().splitlines(keepends=True)[:4] == first[:4]


def test_a_file_that_is_not_this_runs_trace_is_left_alone(
    run: RunScript, unfinished: RunScript, tmp_path: Path
) -> None:
    """Whether there is some output already, or none."""
    path, out = tmp_path / "trace.jsonl", tmp_path / "out.txt"
    assert unfinished("--trace", str(path)) == 0
    stopped = {file: file.read_bytes() for file in tmp_path.iterdir()}
    lines = stopped[path].splitlines(keepends=True)
    for done in (0, 4):
        another, too_long = b"".join(lines[1 : done + 3]), b"".join(lines[: done + 2])
        for content in (b"mine\n" * 6, b"mine", another, too_long):
            for file, whole in stopped.items():
                file.write_bytes(whole)
            cut(out, done)
            path.write_bytes(content)
            before = {file: file.read_bytes() for file in tmp_path.iterdir()}
            assert run("--resume", "--trace", str(path)) == 1, (content, done)
            assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_finished_run_keeps_its_figures(
    run: RunScript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command has nothing to do; and a run whose figures cannot be written is not done
    again."""
    stats = tmp_path / "stats"
    for _ in range(2):
        assert run("--resume", "--stats-json", str(stats)) == 0
        assert json.loads(stats.read_text())["sentences"] == len(SENTENCES)
    (tmp_path / "out.txt").unlink()
    (tmp_path / "out.txt.resume").unlink()

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(inference, "write_json", refuse)
        assert run("--stats-json", str(stats)) == 1
    before = (tmp_path / "out.txt").stat().st_mtime_ns
    assert run("--resume", "--stats-json", str(stats)) == 0
    assert (tmp_path / "out.txt").stat().st_mtime_ns == before


@pytest.mark.parametrize("stream", ["stdin", "stdout"])
@pytest.mark.parametrize("kind", ["text", "html"])
def test_a_closed_stream_is_one_line(
    kind: str,
    stream: str,
    run: RunScript,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    path = {"stdin": "input_path", "stdout": "output_path"}[stream]
    with monkeypatch.context() as patch:
        patch.setattr(f"sys.{stream}", None)
        assert run("--format", kind, **{path: "-"}) == 1
    assert "is closed; name a file" in capfd.readouterr().err


def test_a_full_disk_leaves_whole_lines(
    run: RunScript, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("\n".join(SENTENCES * 12) + "\n")
    # Lines that are longer than what is noted of them.
    usual = {"input_path": str(source), "strategy": "AR", "batch": "8", "max_len_b": "15"}
    assert run("--quiet", **usual) == 0
    whole = out.read_text()
    max_ = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2500, max_[1]))
    try:
        assert run(**usual) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, max_)
        signal.signal(signal.SIGXFSZ, handler)
    assert str(out) in capfd.readouterr().err.splitlines()[-1]
    assert whole.startswith(out.read_text())
    assert 2500 - max(map(len, whole.splitlines())) <= out.stat().st_size <= 2500
    assert run("--resume", **usual) == 0
    assert out.read_text() == whole
