"""``scripts/inference.py``: lines in, lines out, and every way in which that can fail."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from html import escape
from pathlib import Path
from typing import Any

import pytest
from helpers.runs.inference_runs import SENTENCES, RunScript, lines_of, one_error
from helpers.runs.scripts_here import SCRIPTS

from specdec_plugins.decoding.statistics import PHASES, RATES
from specdec_plugins.decoding.steps.drafter import DrafterStep
from specdec_plugins.engines.step import Step


@pytest.mark.parametrize(
    "flags",
    [
        "--strategy AR --batch 4",
        "--strategy fairseq --beam 1",
        "--block-size 2 --path block.pt --batch 4",
        "--controller none --batch 4",
        "--controller heuristic --initial-draft 3",
        "--controller confidence --confidence-threshold 0.05 --refit-threshold",
        "--controller tree --batch 4",
        "--controller oracle --path block.pt",
        "--path shared.pt --fp64",
        "--path drafter.pt:verifier.pt",
        "--path verifier.pt:drafter.pt",
    ],
)
def test_strict_strategies_agree(
    tmp_path: Path, run: RunScript, greedy: list[str], flags: str
) -> None:
    assert run(*flags.split(), **({"AR_path": None} if ":" in flags else {})) == 0
    assert lines_of(tmp_path / "out.txt") == greedy
    assert len(set(greedy)) > 4


@pytest.mark.parametrize("strategy", ["AR", "specdec", "fairseq"])
def test_nbest(tmp_path: Path, run: RunScript, strategy: str) -> None:
    """A beam's outputs of a line stand in its line, the best first."""
    flags = f"--strategy {strategy} --beam 3 --nbest"
    outputs = []
    for count in (1, 3):
        assert run(*flags.split(), str(count)) == 0
        outputs.append([line.split("\t") for line in lines_of(tmp_path / "out.txt")])
    best, all_ = outputs
    assert len(all_) == len(SENTENCES)
    assert [line[:1] for line in all_] == best
    assert {len(set(line)) for line in all_} == {3}


def test_an_ensemble(tmp_path: Path, run: RunScript, capfd: pytest.CaptureFixture[str]) -> None:
    """All of its verifiers count, in any order."""
    outputs = set()
    for path in ("verifier.pt:wide.pt", "wide.pt:verifier.pt", "verifier.pt:verifier.pt"):
        assert run("--beam", "3", "--nbest", "3", path=path, AR_path=None) == 0
        outputs.add((tmp_path / "out.txt").read_text())
    assert len(outputs) == 2
    capfd.readouterr()
    assert run("--beam", "1", path="verifier.pt:wide.pt", AR_path=None) == 2
    assert "--path verifier.pt:wide.pt: ensembles have beam search alone" in one_error(capfd)
    assert run("--beam", "3", path="drafter.pt:verifier.pt:wide.pt", AR_path=None) == 1
    assert "give a drafter and its verifier, or verifiers of an ensemble" in one_error(capfd)


def test_unusual_lines(
    run: RunScript, tmp_path: Path, greedy: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    source, plain = tmp_path / "unusual", tmp_path / "plain"
    long = "w1 w2 w3 " * 40
    lines = ["\ufeffw1 w2", "w1 never heard", "", "  \t", long, "w1 w2\r", "w1 <pad> </s>"]
    source.write_bytes("\n".join([*lines, *SENTENCES[::-1]]).encode())
    lines = ["w1 w2", "w1 <unk> <unk>", "", "", " ".join(long.split()[:63]), "w1 w2", "w1 </s>"]
    plain.write_text("\n".join([*lines, *SENTENCES[::-1], ""]))
    results = []
    for path in (source, plain):
        assert run(batch="5", input_path=str(path)) == 0
        results.append(lines_of(tmp_path / "out.txt"))
    assert results[0] == results[1]
    assert results[0][7:] == greedy[::-1]
    # Each run names its first unknown word, and the first output that ran into the length limit.
    warnings = [r.message for r in caplog.records if r.levelname == "WARNING"]
    assert [message[:7] for message in warnings] == [
        "line 2:",
        "line 5:",
        "line 2:",
        "line 2:",
        "line 2:",
    ]


@pytest.mark.parametrize(
    ("bad", "flags"), [(b"w1 \xff w2", ""), (b"w1", "--max-len-a 1 --max-len-b 1 --min-len 4")]
)
def test_a_bad_line_after_good_ones(
    bad: bytes, flags: str, run: RunScript, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """No UTF-8, or too short for the minimum."""
    source = tmp_path / "bad.txt"
    lines = [sentence.encode() for sentence in SENTENCES[2:6] for _ in "ab"]
    source.write_bytes(b"\n".join([*lines[:6], bad, *lines[6:], b""]))
    assert run(*flags.split(), batch="4", input_path=str(source)) == 1
    assert "line 7" in one_error(capfd)
    assert len(lines_of(tmp_path / "out.txt")) == 6


def test_a_minimum_length_that_no_line_can_reach(
    run: RunScript, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is refused before the run: nothing is written over."""
    (tmp_path / "out.txt").write_text("earlier\n")
    assert run("--min-len", "5000") == 2
    assert "--min-len 5000: is above the maximum length" in one_error(capfd)
    assert lines_of(tmp_path / "out.txt") == ["earlier"]


@pytest.mark.parametrize("flag", ["--output-path", "--trace"])
def test_a_pipe_whose_reader_leaves(flag: str, run: RunScript, tmp_path: Path) -> None:
    fifo, source = tmp_path / "fifo", tmp_path / "in"
    os.mkfifo(fifo)
    source.write_text("w1 w2\n" * 400)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(lambda: fifo.open("rb").readline())
        assert run(flag, str(fifo), input_path=str(source)) == 1
        assert read.result().endswith(b"\n")


def test_streams_that_nobody_reads(
    run: RunScript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind ``head``: no fault, unless something else was to be written."""
    monkeypatch.setattr(sys, "stderr", None)
    for flag, status in ((None, 0), ("--trace", 1), ("--stats-json", 1)):
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "w") as closed:
            monkeypatch.setattr(sys, "stdout", closed)
            flags = [] if flag is None else [flag, str(tmp_path / "other")]
            assert run(*flags, output_path="-") == status


def test_subtitles(
    run: RunScript, tmp_path: Path, greedy: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Each is translated as a line is; line ends and all else stay, also through pipes."""
    pytest.importorskip("webvtt", reason="webvtt is not installed (extra [subtitles])")
    times = "00:00:01,600 --> 00:00:04,000"
    text, output = (
        "".join(f"{n}\r\n{times}\r\n{line}\r\n\r\n" for n, line in enumerate(lines, 1))
        for lines in (SENTENCES, greedy)
    )
    path = tmp_path / "talk.srt"
    path.write_bytes(text.encode())
    assert run("--format", "srt", "--quiet", input_path=str(path)) == 0
    assert (tmp_path / "out.txt").read_bytes() == output.encode()
    assert run("--format", "srt", "--quiet", input_path=str(path), output_path="-") == 0
    assert capfd.readouterr().out == output
    assert run("--format", "srt", "--quiet", "--drafts", "source", input_path=str(path)) == 0
    search = "--strategy fairseq"
    for flags in ("--resume", "--stats", f"--nbest 2 {search}", f"--constraints {search}"):
        assert run("--format", "srt", *flags.split(), input_path=str(path)) == 2
        error = one_error(capfd)
        assert flags.split()[0] in error
        assert "does not work with --format srt" in error
    path.write_bytes(b"no subtitles\n")
    assert run("--format", "srt", input_path=str(path)) == 1
    assert f"{path}: is not SRT" in one_error(capfd)
    path.write_bytes(b"\xff")
    assert run("--format", "html", input_path=str(path)) == 1
    assert f"{path}: is not UTF-8" in one_error(capfd)
    assert (tmp_path / "out.txt").read_bytes() == output.encode()


def test_markup_stays_byte_for_byte(run: RunScript, tmp_path: Path, greedy: list[str]) -> None:
    path = tmp_path / "page.html"
    page = "<p>%s</p>\r\n<script>a\rb</script>\n<p>%s</p>\r"
    path.write_bytes((page % (*SENTENCES[:2],)).encode())
    assert run("--format", "html", "--quiet", input_path=str(path)) == 0
    output = (tmp_path / "out.txt").read_bytes().decode()
    assert output == page % (*map(escape, greedy[:2]),)


def test_a_remedy_that_works(
    run: RunScript, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """An input that has to be changed is not gone on with."""
    path = tmp_path / "in"
    path.write_bytes(b"w1\nw2\xff\nw3\n")
    assert run(input_path=str(path)) == 1
    error = one_error(capfd)
    assert "line 2 is not UTF-8; unpack or convert it" in error
    assert "--resume" not in error


def test_sampling(run: RunScript, tmp_path: Path, greedy: list[str]) -> None:
    """From the best token alone it is greedy; else the seed decides."""
    flags, outputs = ["--sampling", "--temperature", "3"], []
    for more in ("--sampling-topk 1", "--seed 1", "", "--seed 2"):
        assert run(*flags, *more.split()) == 0
        outputs.append(lines_of(tmp_path / "out.txt"))
    assert outputs[0] == greedy
    assert outputs[1] == outputs[2] != outputs[3]


@pytest.mark.parametrize("strategy", ["specdec", "AR", "fairseq", "drafter"])
def test_stats_json(run: RunScript, tmp_path: Path, strategy: str) -> None:
    """Figures that a strategy lacks are null."""
    path, judges = tmp_path / "stats.json", strategy == "specdec"
    flags = ["--stats-json", str(path), "--batch", "4"]
    flags += ["--controller", "constant"] if judges else []
    assert run(*flags, strategy=strategy) == 0
    report = json.loads(path.read_text())
    drafts, steps, seconds = judges or strategy == "drafter", report["steps"], report["seconds"]
    assert ("drafter" in report["files"]) == drafts
    expected = {"strategy": strategy, "batch": 4, "block_size": 4 if drafts else None}
    assert report["settings"] | expected == report["settings"]
    engine = "eager" if strategy == "fairseq" else "onnxruntime"
    precision = "float32, int8 drafts" if strategy == "specdec" else "float32"
    facts = {"device": "cpu", "engine": engine, "precision": precision}
    facts |= {"sentences": len(SENTENCES), "drafted_tokens": 4 * steps if drafts else None}
    assert report | facts == report
    lacking = {name for name, value in report.items() if value is None} - {"not_by_ctranslate2"}
    judged = {*RATES, "acceptance_histogram", "accepted_tokens", "verified_tokens"}
    assert not lacking if judges else lacking >= judged
    assert set(seconds) == {*PHASES, "other", "total"}
    assert seconds["total"] == pytest.approx(sum(seconds.values()) - seconds["total"])


@pytest.mark.parametrize(
    ("drafter", "flags", "reported"),
    [
        ("drafter.pt", "--bf16 --strategy fairseq", {"precision": "bfloat16"}),
        ("drafter.pt", "--engine onnxruntime --controller tree", {"engine": "onnxruntime"}),
        ("drafter.pt", "--beta 3 --tau 1", {"output_depends_on_batch": False}),
        ("drafter.pt", "--batch 4 --sampling --controller auto", {"by": "tree"}),
        ("block.pt", "--beta 3 --tau 2", {"by": "constant"}),
        ("block.pt", "--tree-nodes 5", {"by": "tree"}),
    ],
)
def test_what_was_chosen_is_reported(
    run: RunScript, world: Path, tmp_path: Path, drafter: str, flags: str, reported: Any
) -> None:
    """With a drafter of the published kind that is what was published."""
    if "onnxruntime" in flags:
        pytest.importorskip("onnxruntime", reason="the extra [int8] is not installed")
    stats, path = tmp_path / "stats.json", str(world / drafter)
    assert run("--stats-json", str(stats), "--cpu", *flags.split(), path=path) == 0
    assert len(lines_of(tmp_path / "out.txt")) == len(SENTENCES)
    report = json.loads(stats.read_text())
    facts = {**report["settings"], **report}
    facts["by"] = (facts["controller"] or {}).get("controller")
    assert facts | reported == facts


@pytest.mark.parametrize(
    ("flags", "status", "named"),
    [
        ("--path verifier.pt --AR-path drafter.pt", 1, "drafter.pt"),
        ("--path drafter.pt:drafter.pt --AR-path=", 1, "drafter.pt"),
        ("--AR-path wide.pt --path shared.pt", 1, "32"),
        ("--AR-path= --path shared.pt --strategy drafter", 2, "--AR-path"),
        ("--block-size 5", 2, "--block-size 5"),
        ("--controller acceptance-head", 2, "acceptance-head"),
        ("-s de -t en", 1, "-s en -t de"),
        ("--user-dir no_such_folder", 2, "--user-dir no_such_folder"),
        ("--input-path missing", 1, "missing"),
        ("--output-path nowhere/out", 1, "nowhere"),
        ("--output-path - --resume", 1, "--resume"),
        ("--trace -", 1, "--trace -"),
        ("--trace=", 1, "--trace: names no file"),
        ("--stats-json -", 1, "--stats-json -"),
    ],
)
def test_bad_input_is_one_line(
    world: Path,
    tmp_path: Path,
    run: RunScript,
    capfd: pytest.CaptureFixture[str],
    flags: str,
    status: int,
    named: str,
) -> None:
    out = tmp_path / "out.txt"
    out.write_text("precious\n")
    assert run(*flags.split()) == status
    assert named in one_error(capfd)
    assert out.read_text() == "precious\n"
    assert lines_of(world / "in.txt") == SENTENCES


def test_a_verifier_alone(
    world: Path,
    tmp_path: Path,
    run: RunScript,
    greedy: list[str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Its languages may be those of flags, or of binarised text; its dictionaries elsewhere."""
    alone = tmp_path / "alone" / "model.pt"
    alone.parent.mkdir()
    alone.write_bytes((world / "nameless.pt").read_bytes())
    usual: dict[str, object] = {"data": alone, "path": None, "AR_path": None, "controller": "none"}
    languages = ["-s", "en", "-t", "de"]
    for flags, named in (([], "--source-lang"), (languages, "dict.en.txt")):
        assert run(*flags, **usual) == 1
        assert named in one_error(capfd)
    assert run(*languages, "--dictionaries", str(world), **usual) == 0
    assert lines_of(tmp_path / "out.txt") == greedy
    for name in ("dict.en.txt", "dict.de.txt"):
        (alone.parent / name).write_bytes((world / name).read_bytes())
    (alone.parent / "train.en-de.en.bin").touch()
    assert run(**usual) == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_no_space_left(run: RunScript, capfd: pytest.CaptureFixture[str]) -> None:
    for flag in ("--output-path", "--trace", "--stats-json"):
        assert run(flag, "/dev/full") == 1
        assert "/dev/full" in capfd.readouterr().err.splitlines()[-1]


def test_typed_lines_are_answered_at_once(tmp_path: Path) -> None:
    """In a Latin-1 locale, or where none can be made in an ASCII one: text is UTF-8 everywhere."""
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    made = ["localedef", "-i", "de_DE", "-f", "ISO-8859-1", str(tmp_path / "de_DE.ISO-8859-1")]
    if shutil.which(made[0]) and subprocess.run(made, capture_output=True).returncode <= 1:
        locale |= {"LC_ALL": "de_DE.ISO-8859-1", "LOCPATH": str(tmp_path)}
    pair = SCRIPTS.parent / "checkpoints/multi30k.en-de"
    process = subprocess.Popen(
        [sys.executable, SCRIPTS / "inference.py", pair, "--cpu", "--engine", "eager"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        # There would be a warning of the locale.
        env={**os.environ, "OMP_NUM_THREADS": "1", "LOGLEVEL": "ERROR", **locale},
        encoding="utf-8",
        # Tests that run in the background inherit that it is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for _ in range(2):
        line = "Two girls from Zürich drink café au lait near the Müller façade, “slowly”."
        print(line, file=process.stdin, flush=True)
        assert process.stdout.readline().startswith("Zwei Mädchen trinken ")
    process.send_signal(signal.SIGINT)
    process.wait(timeout=60)  # before its input ends, which would end it too
    out, err = process.communicate()
    assert (process.returncode, out) == (130, "")
    assert re.fullmatch(r"inference.py: interrupted; .*\n", err)


@pytest.mark.parametrize(
    ("cannot", "engine"),
    [(Step, "eager"), (DrafterStep, "onnxruntime, onnxruntime and eager drafts")],
)
def test_engines_that_cannot_take_a_step(
    cannot: Any, engine: str, run: RunScript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report names what ran the models in their place."""
    onnxruntime: Any = pytest.importorskip("specdec_plugins.engines.onnxruntime")
    load, stats = onnxruntime.OnnxRuntimeEngine.load, tmp_path / "stats.json"

    def load_or_fail(self: Any, step: Step) -> Any:
        if isinstance(step, cannot):
            raise RuntimeError("no such operation")
        return load(self, step)

    monkeypatch.setattr(onnxruntime.OnnxRuntimeEngine, "load", load_or_fail)
    assert run("--stats-json", str(stats), "--engine", "auto", "--cpu") == 0
    report = json.loads(stats.read_text())
    assert report["engine"] == engine
    assert "(no such operation)" in report["engine_fallbacks"][0]


def test_drafts_are_lines_of_a_file(tmp_path: Path, run: RunScript, unfinished: RunScript) -> None:
    """They must be as many as the input's, and go on with the lines after --resume; other drafts
    would have written other lines before."""
    assert run("--strategy", "AR") == 0
    drafts, output, stats = tmp_path / "drafts", tmp_path / "out.txt", tmp_path / "stats"
    expected = output.read_text()
    lines = expected.splitlines(keepends=True)
    drafts.write_text("".join(lines[:4]))
    flags = "--drafts", str(drafts), "--stats-json", str(stats)
    output.unlink()
    assert run(*flags) == 1
    assert not output.exists(), "found before the run"
    drafts.write_text(expected)
    assert unfinished(*flags) == 0
    output.write_text("".join(lines[:4]))
    drafts.write_text(expected.upper())
    assert run(*flags, "--resume") == 1
    assert output.read_text() == "".join(lines[:4])
    drafts.write_text(expected)
    assert run(*flags, "--resume") == 0
    assert output.read_text() == expected
    assert json.loads(stats.read_text())["steps"] == len(SENTENCES) - 4
