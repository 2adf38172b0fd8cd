"""``scripts/inference.py``: lines in, lines out, and every way in which that can fail."""

from __future__ import annotations

import hashlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import make_dictionary, make_task, make_verifier, vary_output
from drafters import make_block, make_causal, save_checkpoint
from models.test_acceptance_head import make_head

from specdec_plugins.checkpoints.archive import CheckpointError
from specdec_plugins.checkpoints.head_file import save_head
from specdec_plugins.cli import inference as script
from specdec_plugins.decoding.acceptance import AcceptanceRule
from specdec_plugins.decoding.controllers import ControllerOptions
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.statistics import PHASES
from specdec_plugins.inference import InferenceError, Settings, load_translator
from specdec_plugins.inference.output import OutputLines
from specdec_plugins.inference.resume import ResumeFile
from specdec_plugins.inference.text import InputLines, Line, TextCodec
from specdec_plugins.inference.trace_file import SentenceTrace, read_trace
from specdec_plugins.inference.translator import Translator
from specdec_plugins.models.acceptance_head import fingerprint

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "inference.py"
SENTENCES = [
    "w3 w4 w5 w6",
    "w7",
    "w1 w2 w3 w4 w5 w6 w7 w8 w9",
    "w19 w18 w17",
    "w0 w0 w0 w0 w0 w1",
    "w11 w12",
    "w5 w4 w3 w2 w1 w0 w9 w8 w7 w6 w5",
    "w14 w13 w16",
    "w2 w9",
]
RunScript = Callable[..., int]


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with dictionaries, BPE codes, a verifier and drafters."""
    folder = tmp_path_factory.mktemp("world")
    for language in ("en", "de"):
        make_dictionary().save(str(folder / f"dict.{language}.txt"))
    merges = [f"w {digit}</w>" for digit in range(10)]
    (folder / "codes").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    languages = {"source_lang": "en", "target_lang": "de"}
    task = make_task()
    verifier = vary_output(make_verifier(task, seed=3))
    save_checkpoint(folder / "verifier.pt", verifier, **languages)
    save_checkpoint(folder / "nameless.pt", verifier)
    save_checkpoint(folder / "drafter.pt", make_causal(task, seed=5), **languages)
    learned = {"encoder_learned_pos": True, "decoder_learned_pos": True}
    block = make_block(make_task(block_size=3), seed=6, **learned)
    save_checkpoint(folder / "block.pt", block, **languages, block_size=3)
    shared = make_causal(task, share_verifier_encoder=True, verifier_features=True, seed=7)
    save_checkpoint(folder / "shared.pt", shared, **languages)
    wide = make_verifier(task, decoder_embed_dim=32, encoder_embed_dim=32)
    save_checkpoint(folder / "wide.pt", wide, **languages)
    (folder / "in.txt").write_text("\n".join(SENTENCES) + "\n")
    return folder


@pytest.fixture
def run(world: Path, tmp_path: Path) -> RunScript:
    """``run(flag, …)`` in this process; flags given replace the usual ones."""

    def run_script(*flags: str, data: Path = world, **usual: str | None) -> int:
        given = {
            "--path": str(world / "drafter.pt"),
            "--AR-path": str(world / "verifier.pt"),
            "--input-path": str(world / "in.txt"),
            "--output-path": str(tmp_path / "out.txt"),
            "--max-len-b": "15",
            **{f"--{name.replace('_', '-')}": value for name, value in usual.items()},
        }
        pairs = (pair for pair in given.items() if pair[1] is not None)
        try:
            return int(script.main([str(data), *(w for pair in pairs for w in pair), *flags]))
        except SystemExit as stop:
            return int(stop.code or 0)

    return run_script


@pytest.fixture(scope="session")
def greedy(world: Path) -> list[str]:
    """What the verifier says to ``SENTENCES``."""
    translator = load_translator(make_settings(world, strategy="AR"))
    return [result.text for result in translator.translate(SENTENCES)]


def test_both_checkpoints_as_fairseq_takes_them(
    run: RunScript, world: Path, tmp_path: Path, greedy: list[str]
) -> None:
    drafter, verifier = str(world / "drafter.pt"), str(world / "verifier.pt")
    for path in (f"{drafter}:{verifier}", f"{verifier}:{drafter}"):
        assert run(path=path, AR_path=None) == 0
        assert (tmp_path / "out.txt").read_text().splitlines() == greedy


@pytest.mark.parametrize(
    ("parts", "verifier", "message"),
    [
        (["drafter"] * 2, None, "both are drafters; give one of each"),
        (["verifier"] * 2, None, "both are verifiers; give one of each"),
        (["drafter", "verifier"], "verifier", "names 2 checkpoints; give the drafter's"),
        (["drafter", "verifier", "verifier"], None, "names 3 checkpoints"),
        (["drafter", "nowhere"], None, "nowhere.pt: no such file"),
    ],
)
def test_what_is_no_pair(
    run: RunScript,
    world: Path,
    capsys: pytest.CaptureFixture[str],
    parts: list[str],
    verifier: str | None,
    message: str,
) -> None:
    path = ":".join(str(world / f"{part}.pt") for part in parts)
    assert run(path=path, AR_path=verifier and str(world / f"{verifier}.pt")) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def make_settings(world: Path, **settings: Any) -> Settings:
    limits = GenerationLimits(max_len_b=15)
    files = {"path": str(world / "drafter.pt"), "ar_path": str(world / "verifier.pt")}
    return Settings(data=str(world), limits=limits, **{**files, **settings})


def lines_of(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    assert text == "" or text.endswith("\n")
    return text.split("\n")[:-1]


def test_the_head_beside_the_drafter_is_used(world: Path, tmp_path: Path) -> None:
    """Strict output is the same, of which less is verified; for another rule it is refused."""
    for name in ("verifier.pt", "drafter.pt"):
        (tmp_path / name).symlink_to(world / name)
    files = {"path": str(tmp_path / "drafter.pt"), "ar_path": str(tmp_path / "verifier.pt")}
    plain = load_translator(make_settings(world, **files))
    expected = [result.text for result in plain.translate(SENTENCES)]
    head = make_head(drafter=fingerprint(plain.generator.drafter.model), bias=-1.0)
    save_head(tmp_path / "acceptance_head.pt", head)
    options = ControllerOptions("acceptance-head", stop_threshold=0.9)
    found = load_translator(make_settings(world, controller=options, **files))
    assert [result.text for result in found.translate(SENTENCES)] == expected
    assert found.statistics.verified_tokens < found.statistics.drafted_tokens
    relaxed = {"controller": options, "rule": AcceptanceRule(3, 1.0), **files}
    with pytest.raises(CheckpointError, match="trained for strict acceptance, not relaxed"):
        load_translator(make_settings(world, **relaxed))
    # Only where it is named: asking it takes time.
    for given in (None, str(tmp_path / "acceptance_head.pt")):
        options = ControllerOptions("cost-aware", acceptance_head=given, cost_profile="unused")
        translator = load_translator(make_settings(world, controller=options, **files))
        assert translator.generator.controller.cuts is (given is not None)


# What it puts out


@pytest.mark.parametrize("batch", ["1", "4"])
@pytest.mark.parametrize(
    "flags",
    [
        ["--strategy", "AR"],
        ["--strategy", "fairseq", "--beam", "1"],
        ["--strategy", "specdec"],
        ["--strategy", "specdec", "--block-size", "2"],
        ["--strategy", "specdec", "--path", "block.pt"],
        ["--controller", "none"],
        ["--controller", "heuristic", "--max-draft", "3"],
        ["--controller", "confidence", "--confidence-threshold", "0.05", "--refit-threshold"],
        ["--controller", "oracle", "--path", "block.pt"],
        ["--strategy", "specdec", "--path", "shared.pt", "--fp64"],
    ],
    ids=" ".join,
)
def test_strict_strategies_agree(
    world: Path, tmp_path: Path, run: RunScript, greedy: list[str], flags: list[str], batch: str
) -> None:
    flags = [str(world / flag) if flag.endswith(".pt") else flag for flag in flags]
    assert run(*flags, batch=batch) == 0
    assert lines_of(tmp_path / "out.txt") == greedy
    assert len(set(greedy)) > 4


def test_published_command_line(
    world: Path,
    tmp_path: Path,
    run: RunScript,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    published = (
        "--user-dir specdec_plugins --task translation_lev_modified --remove-bpe "
        "--max-sentences 20 --source-lang en --target-lang de --iter-decode-max-iter 0 "
        "--iter-decode-eos-penalty 0 --iter-decode-with-beam 1 --gen-subset test "
        "--block-size 3 --beta 5 --tau 3.0 --batch 1 --beam 5 --strategy specdec"
    )
    assert run(*published.split(), path=str(world / "block.pt"), max_len_b=None) == 0
    assert len(lines_of(tmp_path / "out.txt")) == len(SENTENCES)
    assert [record.message for record in caplog.records if "nothing" in record.message] == [
        "these flags do nothing here: --remove-bpe --max-sentences --iter-decode-max-iter "
        "--iter-decode-eos-penalty --iter-decode-with-beam --gen-subset"
    ]
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "specdec, batch 1, block size 3, beta 5, tau 3.0; float32 on cpu" in captured.err
    assert "acceptance length" in captured.err


def test_used_flags_are_not_called_useless(
    run: RunScript, caplog: pytest.LogCaptureFixture
) -> None:
    assert run("--strategy", "AR", "--lenpen=0.5", "--min-len", "2", "--quiet", "--seed=3") == 0
    assert run("--strategy", "fairseq", "--no-repeat-ngram-size", "2") == 0
    assert not caplog.records
    assert run("--strategy", "AR", "--sampling", "--sampling-topk=3") == 0
    assert run("--strategy", "fairseq", "--sampling", "--sampling-topp=0.5") == 0
    assert not caplog.records
    assert run("--strategy", "AR", "--bpe-codes", "x", "--lm-weight=1") == 0
    assert run("--strategy", "AR", "--tau=2", "--beta=3", "--tree-nodes", "4") == 0
    assert run("--strategy", "drafter", "--stop-threshold=0.5", "--block-size=3") == 0
    unused = ["--stop-threshold=0.5", "--acceptance-head", "head.pt"]
    assert run("--controller", "tree", "--tree-nodes=5", "--max-draft=3", *unused) == 0
    assert run("--controller", "none", "--block-size=3", "--beta=3") == 0
    assert [r.message for r in caplog.records] == [
        "these flags do nothing here: --bpe-codes --lm-weight",
        "these flags do nothing here: --tau --beta --tree-nodes",
        "these flags do nothing here: --stop-threshold",
        "these flags do nothing here: --stop-threshold --acceptance-head",
        "these flags do nothing here: --block-size --beta",
    ]


@pytest.mark.parametrize("strategy", ["specdec", "drafter", "fairseq"])
def test_order_is_that_of_the_input(run: RunScript, tmp_path: Path, strategy: str) -> None:
    source = tmp_path / "in.txt"
    source.write_text("\n".join(["", *SENTENCES * 3, " ", "w1 w2"] * 2))
    results = []
    for batch in ("1", "5"):
        assert run("--strategy", strategy, batch=batch, input_path=str(source)) == 0
        results.append(lines_of(tmp_path / "out.txt"))
    assert results[0] == results[1]
    assert [i for i, line in enumerate(results[0]) if not line] == [0, 28, 30, 58]


def test_lines_come_as_soon_as_they_are_known(world: Path) -> None:
    translator = load_translator(make_settings(world, batch=2))
    read: list[int] = []

    def lines() -> Iterator[Line]:
        for number, text in enumerate(SENTENCES, start=1):
            read.append(number)
            yield Line(number, text)

    translated = translator.translate(lines(), window=4)
    next(translated)
    assert read == [1, 2, 3, 4]
    assert len(list(translated)) == len(SENTENCES) - 1


@pytest.mark.parametrize("window", [1, 3, 64])
def test_windows_change_nothing(world: Path, greedy: list[str], window: int) -> None:
    translator = load_translator(make_settings(world, batch=3))
    lines = [line for sentence in SENTENCES for line in (sentence, "")]
    results = list(translator.translate(lines, window))
    assert [result.text for result in results[::2]] == greedy
    assert all(r.text == "" and r.tokens == 0 and not r.accepted for r in results[1::2])
    for result in results[::2]:
        assert result.tokens - sum(result.accepted) in range(len(result.accepted) + 1)
    assert translator.statistics.sentences == len(SENTENCES)


def test_unusual_lines(
    run: RunScript, tmp_path: Path, world: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, plain = tmp_path / "unusual", tmp_path / "plain"
    long = "w1 w2 w3 " * 40
    source.write_bytes(
        "\n".join(
            ["\ufeffw1 w2", "w1 never heard", "", "  \t", long, "w1 w2\r", "w1 <pad> </s> <s>"]
        ).encode()
    )
    kept = " ".join(long.split()[:63])
    unknown = "w1 <unk> <unk>"
    plain.write_text("\n".join(["w1 w2", unknown, "", "", kept, "w1 w2", f"{unknown} <unk>", ""]))
    results = []
    for path in (source, plain):
        assert run(input_path=str(path), output_path=str(tmp_path / "out")) == 0
        results.append(lines_of(tmp_path / "out"))
    assert results[0] == results[1]
    assert len(results[0]) == 7
    (warning,) = [r.message for r in caplog.records]
    assert "line 5: 120 tokens" in warning
    assert "first 63" in warning


def test_empty_input(run: RunScript, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    stats = tmp_path / "stats.json"
    assert run("--stats-json", str(stats), input_path=str(tmp_path / "empty")) == 0
    assert (tmp_path / "out.txt").read_bytes() == b""
    assert json.loads(stats.read_text())["sentences"] == 0


def test_raw_text(run: RunScript, tmp_path: Path) -> None:
    raw, segmented = tmp_path / "raw", tmp_path / "segmented"
    raw.write_text("w1 w2, w3.\nw9!\n")
    segmented.write_text("w1 w2 , w3 .\nw9 !\n")
    encoders = ["--tokenizer", "moses", "--bpe", "subword_nmt"]
    assert run(*encoders, input_path=str(raw), output_path=str(tmp_path / "a")) == 0
    assert run(input_path=str(segmented), output_path=str(tmp_path / "b")) == 0
    assert lines_of(tmp_path / "a") == lines_of(tmp_path / "b")


class Brackets:
    """A tokenizer or BPE whose work can be seen."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def encode(self, text: str) -> str:
        return f"{self.kind} {text}"

    def decode(self, text: str) -> str:
        return f"{self.kind}({text})"


def test_codec_decodes_in_the_reverse_order() -> None:
    dictionary = make_dictionary(1)
    for symbol in ("b@@", "c", "tok", "bpe"):
        dictionary.add_symbol(symbol)
    ids = dictionary.encode_line("b@@ c b@@ <unk>", add_if_not_exist=False)

    def codec(**settings: Any) -> TextCodec:
        return TextCodec(dictionary, dictionary, 64, **settings)

    assert codec(markers="subword_nmt").decode(ids) == "bc b<unk>"
    last = dictionary.encode_line("c b@@", add_if_not_exist=False)
    assert codec(markers="subword_nmt").decode(last) == "c b"
    assert codec(markers="subword_nmt", keep_bpe=True).decode(ids) == "b@@ c b@@ <unk>"
    encoders = {"tokenizer": Brackets("tok"), "bpe": Brackets("bpe")}
    assert codec(**encoders).decode(ids) == "tok(bpe(b@@ c b@@ <unk>))"
    assert codec(**encoders, keep_bpe=True).decode(ids) == "b@@ c b@@ <unk>"
    encoded = codec(**encoders).encode(Line(1, "c"))
    assert encoded is not None
    assert dictionary.string(encoded) == "bpe tok c"
    assert codec(tokenizer=SimpleNamespace(encode=lambda _: " ")).encode(Line(1, "x")) is None
    with pytest.raises(ValueError, match="--post-process nonsense"):
        codec(markers="nonsense")


def test_bfloat16_on_the_cpu(run: RunScript, tmp_path: Path) -> None:
    stats = tmp_path / "stats.json"
    for strategy in ("specdec", "AR", "fairseq", "drafter"):
        assert run("--bf16", "--cpu", "--strategy", strategy, "--stats-json", str(stats)) == 0
        assert len(lines_of(tmp_path / "out.txt")) == len(SENTENCES)
        assert json.loads(stats.read_text())["dtype"] == "bfloat16"


# What it reports


@pytest.mark.parametrize(("below", "drafts_anew"), [("inf", True), ("0", False)])
def test_stats_of_trees(run: RunScript, tmp_path: Path, below: str, drafts_anew: bool) -> None:
    path = tmp_path / "stats.json"
    flags = ("--controller", "tree", "--tree-nodes", "5", "--redraft-below", below)
    assert run("--stats-json", str(path), *flags, batch="1") == 0
    report = json.loads(path.read_text())
    controller = report["settings"]["controller"]
    assert controller["tree_nodes"] == 5
    assert float(controller["redraft_below"]) == float(below)
    assert report["drafted_tokens"] == 5 * report["steps"]
    assert (report["drafter_calls"] == report["steps"]) == drafts_anew


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ((), ""),
        (("--beta", "3", "--tau", "1"), ""),
        (("--controller", "cost-aware"), ""),
        (("--beta", "3", "--tau", "1", "--controller", "cost-aware"), "and on timings"),
        (("--beta", "3", "--controller", "confidence", "--refit-threshold"), "what came before"),
    ],
)
def test_where_relaxed_output_depends_on_the_batch(
    run: RunScript, tmp_path: Path, flags: tuple[str, ...], told: str, capfd: Any
) -> None:
    stats, costs = tmp_path / "stats.json", str(tmp_path / "costs.json")
    named = ("--cost-profile", costs) if "cost-aware" in flags else ()
    assert run("--stats-json", str(stats), *flags, *named) == 0
    depends = json.loads(stats.read_text())["settings"]["output_depends_on_batch"]
    assert depends == bool(told)
    said = "relaxed output depends here on what else is in the batch" in (
        err := capfd.readouterr().err
    )
    assert said == depends
    assert told in err


@pytest.mark.parametrize("strategy", ["specdec", "AR", "fairseq"])
def test_sampling(
    run: RunScript, tmp_path: Path, greedy: list[str], strategy: str, capfd: Any
) -> None:
    """From the best token alone it is greedy; else the seed decides, and that it is recorded."""
    out, path = tmp_path / "out.txt", tmp_path / "stats.json"
    flags = ["--sampling", "--temperature", "3", "--stats-json", str(path), "--beam", "1"]
    outputs = []
    assert run(*flags, "--sampling-topk", "1", strategy=strategy) == 0
    assert lines_of(out) == greedy
    assert "sampling (top 1) at temperature 3" in capfd.readouterr().err
    for more in (["--sampling-topk", "9999"], *(["--seed", seed] for seed in "112")):
        assert run(*flags, *more, strategy=strategy) == 0
        outputs.append(lines_of(out))
    assert outputs[1] == outputs[2] != outputs[3]
    assert run(*flags, "--seed", "2", "--warmup", "3", strategy=strategy) == 0
    assert lines_of(out) == outputs[3]
    settings = json.loads(path.read_text())["settings"]
    assert settings["seed"] == 2
    if strategy == "fairseq":
        stock = settings["search_options"]
        assert (stock["sampling"], stock["sampling_topk"], stock["sampling_topp"]) == (True, -1, -1)
    else:
        assert settings["rule"]["sampling"] == {"topk": -1, "topp": -1.0}
    assert f"{strategy}, batch 1" in (report := capfd.readouterr().err)
    assert "sampling at temperature 3" in report


@pytest.mark.parametrize("strategy", ["specdec", "AR", "fairseq", "drafter"])
@pytest.mark.parametrize("batch", ["1", "4"])
def test_stats_json(run: RunScript, tmp_path: Path, strategy: str, batch: str, capfd: Any) -> None:
    path = tmp_path / "stats.json"
    assert run("--stats-json", str(path), "--beam", "2", strategy=strategy, batch=batch) == 0
    report = json.loads(path.read_text())
    settings = report.pop("settings")
    drafts = strategy in ("specdec", "drafter")
    assert settings["strategy"] == strategy
    assert settings["block_size"] == (4 if drafts else None)
    assert settings["beam"] == (2 if strategy == "fairseq" else None)
    assert settings["limits"]["max_len_b"] == 15
    assert (settings["batch"], settings["seed"], settings["warmup"]) == (int(batch), 1, 0)
    if strategy == "specdec":
        assert settings["rule"] == {"beta": 1, "tau": 0.0, "sampling": None}
        assert settings["controller"]["controller"] == "constant"
        assert settings["output_depends_on_batch"] is False
    else:
        assert settings["controller"] is settings["output_depends_on_batch"] is None
    models = {"verifier", "drafter"} if drafts else {"verifier"}
    assert set(report["files"]) == {*models, "dict.en.txt", "dict.de.txt", "codes"}
    assert set(report["versions"]) == {"python", "torch", "fairseq", "specdec_plugins"}
    assert (report["device"], report["dtype"], report["threads"]) == ("cpu", "float32", 1)
    assert report["sentences"] == len(SENTENCES)
    calls, committed = report["verifier_calls"], report["committed_tokens"]
    assert calls == (0 if strategy == "drafter" else report["steps"])
    assert report["drafted_tokens"] == (4 * report["steps"] if drafts else None)
    assert report["drafter_calls"] == (report["steps"] if drafts else None)
    if strategy == "specdec":
        weighted = sum(i * count for i, count in enumerate(report["acceptance_histogram"]))
        assert report["accepted_tokens"] == weighted
        assert report["steps"] == sum(report["acceptance_histogram"])
        assert report["acceptance_length"] == pytest.approx(committed / report["steps"])
        assert report["verification_rate"] == pytest.approx(calls / committed)
        discarded = report["drafted_tokens"] - report["accepted_tokens"]
        assert report["discard_rate"] == pytest.approx(discarded / committed)
    else:
        names = ("acceptance_length", "verification_rate", "discard_rate", "acceptance_histogram")
        assert not {*names, "accepted_tokens", "verified_tokens"} - {
            name for name, value in report.items() if value is None
        }
        assert "accept" not in capfd.readouterr().err
    seconds = report["seconds"]
    assert set(seconds) == {*PHASES, "other", "total"}
    assert seconds["total"] == pytest.approx(sum(seconds.values()) - seconds["total"])
    assert report["tokens_per_second"] == pytest.approx(committed / seconds["total"])
    assert set(report["latency_ms"]) == {"p50", "p90", "mean"}
    assert 0 < report["latency_ms"]["p50"] <= report["latency_ms"]["p90"]


def test_cost_aware(run: RunScript, tmp_path: Path, greedy: list[str]) -> None:
    """It measures, keeps what it measured, and translates as ever."""
    costs, stats = tmp_path / "costs.json", tmp_path / "stats.json"
    flags = ["--controller", "cost-aware", "--cost-profile", str(costs), "--fp64"]
    for batch in ("1", "4"):
        assert run(*flags, "--stats-json", str(stats), batch=batch) == 0
        assert lines_of(tmp_path / "out.txt") == greedy
        report = json.loads(stats.read_text())
        assert report["settings"]["controller"]["controller"] == "cost-aware"
        digest = hashlib.sha256(costs.read_bytes()).hexdigest()
        assert report["files"]["cost_profile"] == {"path": str(costs), "sha256": digest}
        assert report["sentences"] == len(SENTENCES)
    assert set(json.loads(costs.read_text())["costs"]) == {"1", "2", "4"}


def test_a_controller_that_needs_a_file_of_its_own(
    run: RunScript, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    thesis = tmp_path / "thesis.txt"
    thesis.write_text("precious")
    assert run("--controller", "cost-aware", "--cost-profile", str(thesis)) == 2
    assert "thesis.txt: is no cost profile" in one_error(capfd)
    assert thesis.read_text() == "precious"


def test_an_oracle_is_called_one(run: RunScript, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("--controller", "oracle") == 0
    assert "not a real decoder" in capfd.readouterr().err


def test_beam_search_is_counted_by_sentence(world: Path) -> None:
    translator = load_translator(make_settings(world, strategy="fairseq", beam=1, batch=4))
    results = list(translator.translate(SENTENCES))
    statistics = translator.statistics
    # Greedy search makes one pass a token.
    assert statistics.steps == statistics.committed_tokens == sum(r.tokens for r in results)
    assert translator.block_size is None


def test_warm_up_is_not_counted(run: RunScript, tmp_path: Path, greedy: list[str]) -> None:
    path = tmp_path / "stats.json"
    for strategy in ("specdec", "fairseq"):
        flags = ["--warmup", "5", "--stats-json", str(path), "--beam", "1", "--batch", "2"]
        assert run(*flags, strategy=strategy) == 0
        assert lines_of(tmp_path / "out.txt") == greedy
        report = json.loads(path.read_text())
        assert report["sentences"] == len(SENTENCES)
        assert report["settings"]["warmup"] == 5


def test_quiet(run: RunScript, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("--quiet", output_path=None) == 0
    captured = capfd.readouterr()
    assert len(captured.out.splitlines()) == len(SENTENCES)
    assert captured.err == ""


def test_progress_bar_only_where_it_is_seen(
    run: RunScript, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("--quiet") == 0
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert run("--quiet") == 0
    assert "9/9" in capfd.readouterr().err
    assert run("--quiet", "--no-progress-bar") == 0
    assert capfd.readouterr().err == ""


# Going on


@pytest.fixture
def unfinished(run: RunScript, monkeypatch: pytest.MonkeyPatch) -> RunScript:
    """``run``, killed at the very end: what it did is there, and how it did it."""

    def run_and_die(*flags: str, **usual: str | None) -> int:
        with monkeypatch.context() as patch:
            patch.setattr(ResumeFile, "finish", lambda self: None)
            return run(*flags, **usual)

    return run_and_die


@pytest.mark.parametrize("batch", ["1", "4"])
@pytest.mark.parametrize("cut", [0, 1, 40, -30, -1, None])
def test_resume(
    run: RunScript,
    unfinished: RunScript,
    tmp_path: Path,
    greedy: list[str],
    batch: str,
    cut: int | None,
) -> None:
    out = tmp_path / "out.txt"
    whole = ("\n".join(greedy) + "\n").encode()
    assert unfinished(batch=batch) == 0
    assert out.read_bytes() == whole
    out.write_bytes(whole[:cut])
    stats = tmp_path / "stats.json"
    assert run("--resume", "--stats-json", str(stats), batch=batch) == 0
    assert out.read_bytes() == whole
    left = len(SENTENCES) - whole[:cut].count(b"\n")
    # A batch that has a line to be done is decoded whole.
    decoded = json.loads(stats.read_text())["sentences"]
    assert decoded == left if batch == "1" else left <= decoded <= len(SENTENCES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.txt", "stats.json"]


@pytest.mark.parametrize("strategy", ["specdec", "AR", "fairseq"])
@pytest.mark.parametrize("batch", ["1", "2"])
@pytest.mark.parametrize("lines", [1, 4, 8])
def test_what_is_drawn_does_not_depend_on_where_a_run_was_stopped(
    run: RunScript, unfinished: RunScript, tmp_path: Path, strategy: str, batch: str, lines: int
) -> None:
    out = tmp_path / "out.txt"
    flags = ["--sampling", "--temperature", "3", "--beam", "1", "--seed", "2"]
    assert unfinished(*flags, strategy=strategy, batch=batch) == 0
    whole = out.read_bytes()
    out.write_bytes(b"".join(whole.splitlines(keepends=True)[:lines]))
    assert run(*flags, "--resume", "--warmup", "1", strategy=strategy, batch=batch) == 0
    assert out.read_bytes() == whole


@pytest.mark.parametrize("stop", [1, 5, 127, 128, 129, 200])
def test_batches_of_a_resumed_run_are_those_of_the_first(
    run: RunScript,
    unfinished: RunScript,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stop: int,
) -> None:
    """Else low precision gives other lines."""
    source, out = tmp_path / "in.txt", tmp_path / "out.txt"
    rows = [f"w{i % 20} w{i // 20}" + " w3" * (i * 5 % 8) for i in range(205)]
    source.write_text("\n".join(rows) + "\n")
    batches: list[list[str]] = []
    decode = Translator._decode

    def noted(self: Translator, texts: list[str], sources: Any) -> Any:
        batches.append(texts)
        return decode(self, texts, sources)

    monkeypatch.setattr(Translator, "_decode", noted)
    usual = {"batch": "2", "input_path": str(source), "strategy": "AR"}
    assert unfinished("--bf16", **usual) == 0
    whole, first = out.read_bytes(), [*batches]
    assert len(first) == 103
    batches.clear()
    out.write_bytes(b"".join(whole.splitlines(keepends=True)[:stop]))
    assert run("--bf16", "--resume", "--warmup", "0", **usual) == 0
    assert out.read_bytes() == whole
    assert batches == [rows for rows in first if rows in batches]
    assert len(batches) <= (205 - stop // 128 * 128 + 1) // 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": "4"}, "was begun with other settings.batch; give what it was begun with, or"),
        ({"AR_path": "nameless.pt"}, "was begun with other models.verifier"),
        ({"path": "block.pt", "beta": "3"}, "other models.drafter, settings.rule.beta"),
        ({"seed": "3"}, "was begun with other settings.seed"),
        ({"input_path": "other.txt"}, "was begun with another line 3 of other.txt"),
        ({"input_path": "short.txt"}, "has 5 lines, short.txt only 4"),
        ({"trace": "trace.jsonl"}, "trace.jsonl: has 0 lines"),
    ],
)
@pytest.mark.parametrize("there", [True, False])
def test_another_run_is_not_gone_on_with(
    run: RunScript,
    unfinished: RunScript,
    world: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, str],
    message: str,
    there: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("nameless.pt", "block.pt"):
        (tmp_path / name).symlink_to(world / name)
    Path("other.txt").write_text("\n".join([*SENTENCES[:2], "w1", *SENTENCES[3:]]) + "\n")
    Path("short.txt").write_text("\n".join(SENTENCES[:4]) + "\n")
    assert unfinished("-s", "en", "-t", "de") == 0
    out = Path("out.txt")
    out.write_bytes(b"".join(out.read_bytes().splitlines(keepends=True)[:5]) + b"w1 w")
    if not there:
        Path("out.txt.resume").unlink()
        if "trace" not in changes and "short" not in str(changes):
            message = "has 5 lines, and there is no"
    capfd.readouterr()
    before = {path: path.read_bytes() for path in Path().iterdir()}
    assert run("--resume", "-s", "en", "-t", "de", **changes) == 1
    assert message in one_error(capfd)
    assert {path: path.read_bytes() for path in Path().iterdir()} == before


def test_input_may_have_grown_and_changed_after_what_is_translated(
    run: RunScript, tmp_path: Path, greedy: list[str]
) -> None:
    source, out = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_bytes("\n".join([*SENTENCES[:6], ""]).encode() + b"w1 \xff")
    assert run(input_path=str(source)) == 1
    source.write_text("\n".join(SENTENCES) + "\n")
    assert run("--resume", input_path=str(source)) == 0
    assert lines_of(out) == greedy
    assert not (tmp_path / "out.txt.resume").exists()


def test_a_complete_output_is_left_as_it_is(
    run: RunScript, tmp_path: Path, greedy: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert run() == 0
    assert run("--resume", batch="2") == 0
    assert "has as many lines as" in caplog.text
    assert lines_of(tmp_path / "out.txt") == greedy
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]


@pytest.mark.parametrize("text", ["", "precious\n", "[]\n", "{}\n", "\udcff"])
def test_a_file_in_the_place_of_the_resume_file_stays(
    run: RunScript, tmp_path: Path, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.txt.resume"
    path.write_text(text, errors="surrogateescape")
    before = path.read_bytes()
    assert run() == 1
    assert "out.txt is to be described; move it away" in one_error(capfd)
    assert path.read_bytes() == before


def test_a_link_to_an_output_is_resumed_as_the_output_itself(
    run: RunScript, unfinished: RunScript, tmp_path: Path, greedy: list[str]
) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "out.txt").symlink_to(tmp_path / "far" / "real")
    assert unfinished() == 0
    real = tmp_path / "far" / "real"
    real.write_text("\n".join(greedy[:4]) + "\nw1")
    assert run("--resume", output_path=str(real)) == 0
    assert lines_of(tmp_path / "out.txt") == greedy
    assert [path.name for path in (tmp_path / "far").iterdir()] == ["real"]


def test_resume_without_an_output_begins(run: RunScript, tmp_path: Path, greedy: list[str]) -> None:
    assert run("--resume") == 0
    assert lines_of(tmp_path / "out.txt") == greedy


def test_without_resume_the_output_is_overwritten(
    run: RunScript, tmp_path: Path, greedy: list[str]
) -> None:
    (tmp_path / "out.txt").write_text("old\n" * 50)
    assert run() == 0
    assert lines_of(tmp_path / "out.txt") == greedy


def test_resume_refuses_a_longer_output(
    run: RunScript, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.txt"
    out.write_text("x\n" * 10 + "unfinished")
    assert run("--resume") == 1
    assert "has 10 lines" in one_error(capfd)
    assert out.read_text() == "x\n" * 10 + "unfinished"


def test_interrupted_and_resumed(
    run: RunScript,
    tmp_path: Path,
    greedy: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    write, written = OutputLines.write, []

    def interrupt(self: OutputLines, text: str) -> None:
        if self.path == str(tmp_path / "out.txt"):
            if len(written) == 5:
                raise KeyboardInterrupt
            written.append(text)
        write(self, text)

    with monkeypatch.context() as patch:
        patch.setattr(OutputLines, "write", interrupt)
        assert run() == 130
    assert "--resume" in one_error(capfd)
    assert lines_of(tmp_path / "out.txt") == greedy[:5]
    assert run("--resume") == 0
    assert lines_of(tmp_path / "out.txt") == greedy


@pytest.mark.parametrize("batch", ["1", "4"])
def test_invalid_utf8_after_valid_lines(
    run: RunScript,
    tmp_path: Path,
    greedy: list[str],
    capfd: pytest.CaptureFixture[str],
    batch: str,
) -> None:
    source = tmp_path / "bad.txt"
    lines = [sentence.encode() for sentence in SENTENCES]
    source.write_bytes(b"\n".join([*lines[:6], b"w1 \xff w2", *lines[7:], b""]))
    assert run("--warmup", "8", batch=batch, input_path=str(source)) == 1
    message = one_error(capfd)
    assert "line 7" in message
    assert "byte 4" in message
    assert lines_of(tmp_path / "out.txt") == greedy[:6]
    assert run("--resume", batch=batch) == 0
    assert lines_of(tmp_path / "out.txt") == greedy


# What it traces


@pytest.mark.parametrize("batch", ["1", "4"])
@pytest.mark.parametrize("strategy", ["specdec", "AR"])
def test_trace(
    run: RunScript, tmp_path: Path, greedy: list[str], strategy: str, batch: str
) -> None:
    lines = [line for sentence in SENTENCES for line in (sentence, " ")]
    (tmp_path / "in").write_text("\n".join(lines) + "\n")
    path, stats = tmp_path / "trace.jsonl", tmp_path / "stats.json"
    flags = ["--trace", str(path), "--stats-json", str(stats), "--warmup", "3"]
    assert run(*flags, strategy=strategy, batch=batch, input_path=str(tmp_path / "in")) == 0
    traced = list(read_trace(str(path)))
    assert [sentence.source for sentence in traced] == lines
    outputs = lines_of(tmp_path / "out.txt")
    assert [sentence.output for sentence in traced] == outputs
    assert outputs[::2] == greedy
    assert not any(sentence.steps for sentence in traced[1::2])
    for sentence in traced[::2]:
        tokens: list[str] = []
        for step in sentence.steps:
            tokens += step.drafted[: step.accepted] + [step.bonus] * (step.bonus is not None)
        assert tokens.pop() == "</s>"
        # fairseq leaves <s> out of text.
        assert " ".join(token for token in tokens if token != "<s>") == sentence.output
    steps = [step for sentence in traced for step in sentence.steps]
    report = json.loads(stats.read_text())
    assert len(steps) == report["steps"]
    assert sum(len(step.drafted) for step in steps) == (report["drafted_tokens"] or 0)
    assert sum(step.accepted for step in steps) == (report["accepted_tokens"] or 0)
    assert sum(step.committed for step in steps) == report["committed_tokens"]


def without_times(path: Path) -> list[SentenceTrace]:
    sentences = read_trace(str(path))
    return [
        replace(sentence, steps=[replace(step, milliseconds=0) for step in sentence.steps])
        for sentence in sentences
    ]


@pytest.mark.parametrize("batch", ["1", "4"])
@pytest.mark.parametrize("further", [0, 1, 2])
@pytest.mark.parametrize("torn", [b"", b'{"source": "w'])
def test_trace_is_resumed_with_its_output(
    run: RunScript,
    unfinished: RunScript,
    tmp_path: Path,
    greedy: list[str],
    batch: str,
    further: int,
    torn: bytes,
) -> None:
    path, out = tmp_path / "trace.jsonl", tmp_path / "out.txt"
    assert unfinished("--trace", str(path), batch=batch) == 0
    whole, first = without_times(path), path.read_bytes().splitlines(keepends=True)
    out.write_bytes("\n".join(greedy[:4]).encode() + b"\nw1 w")
    path.write_bytes(b"".join(first[: 4 + further]) + torn)
    assert run("--resume", "--trace", str(path), batch=batch) == 0
    assert lines_of(out) == greedy
    assert without_times(path) == whole
    assert path.read_bytes().splitlines(keepends=True)[:4] == first[:4]


def test_interrupted_trace(
    run: RunScript, tmp_path: Path, greedy: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = tmp_path / "trace.jsonl", tmp_path / "out.txt"
    write, written = OutputLines.write, []

    def interrupt(self: OutputLines, text: str) -> None:
        if not self.path.endswith(".resume"):
            if len(written) == 9:
                raise KeyboardInterrupt
            written.append(text)
        write(self, text)

    with monkeypatch.context() as patch:
        patch.setattr(OutputLines, "write", interrupt)
        assert run("--trace", str(path)) == 130
    assert lines_of(out) == greedy[:4]
    assert [sentence.output for sentence in read_trace(str(path))] == greedy[:5]
    assert run("--resume", "--trace", str(path)) == 0
    assert lines_of(out) == greedy
    assert [sentence.output for sentence in read_trace(str(path))] == greedy


def test_trace_of_another_output(
    run: RunScript, tmp_path: Path, greedy: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "trace.jsonl", tmp_path / "out.txt"
    out.write_text("\n".join(greedy[:4]) + "\n")
    path.write_text("{}\n" * 3 + "{}")
    assert run("--resume", "--trace", str(path)) == 1
    assert f"--trace {path}: has 3 lines, {out} already 4" in one_error(capfd)
    assert lines_of(out) == greedy[:4]
    assert path.read_text() == "{}\n" * 3 + "{}"


@pytest.mark.parametrize("strategy", ["fairseq", "drafter"])
def test_strategies_without_a_trace(
    run: RunScript, tmp_path: Path, capfd: pytest.CaptureFixture[str], strategy: str
) -> None:
    path = tmp_path / "trace.jsonl"
    assert run("--trace", str(path), strategy=strategy) == 2
    assert f"--trace: --strategy {strategy} has no" in one_error(capfd)
    assert not path.exists()


def test_nothing_is_recorded_unasked(world: Path) -> None:
    translator = load_translator(make_settings(world))
    assert all(result.trace is None for result in translator.translate(["", *SENTENCES]))
    assert translator.generator.recorder is None  # type: ignore[attr-defined]


# What goes wrong


@pytest.mark.parametrize("strategy", ["specdec", "AR", "fairseq", "drafter"])
@pytest.mark.parametrize("batch", ["1", "4"])
def test_a_line_too_short_for_the_minimum(
    run: RunScript, tmp_path: Path, strategy: str, batch: str, monkeypatch: Any, capfd: Any
) -> None:
    """Of a file, nothing is decoded; what comes by and by is, up to that line."""
    text = b"w1 w2 w3 w4 w5\n\nw1 w2 w3 w4\nw1\nw1 w2 w3 w4 w5\n"
    (tmp_path / "in.txt").write_bytes(text)
    flags = ("--max-len-a", "1", "--min-len", "4", "--quiet")
    given = {"max_len_b": "1", "strategy": strategy, "batch": batch}
    fault = "line 4: --min-len 4: is above the maximum length of a source of 2 tokens, 3"
    assert run(*flags, input_path=str(tmp_path / "in.txt"), **given) == 1
    assert f"in.txt: {fault}" in one_error(capfd)
    assert not (out := tmp_path / "out.txt").exists() or not out.read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert run(*flags, input_path="-", **given) == 1
    assert fault in one_error(capfd)
    assert len(lines_of(out)) == 3
    assert all(lines_of(out)[i] for i in (0, 2))


def one_error(capfd: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr."""
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("inference.py: ")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize(
    ("flags", "status", "message"),
    [
        (["--path", "verifier.pt", "--AR-path", "drafter.pt"], 1, "drafter.pt: is a drafter"),
        (["--path", "verifier.pt"], 1, "verifier.pt: is no drafter"),
        (["--path", "missing.pt"], 1, "missing.pt: no such file"),
        (["--AR-path", "codes"], 1, "codes: not a checkpoint"),
        (["--AR-path", "wide.pt", "--path", "shared.pt"], 1, "verifier's is 32"),
        (["--block-size", "5"], 2, "--block-size 5: the drafter was trained for blocks of 1 to 4"),
        (["--block-size", "0"], 2, "--block-size 0: must be at least 1"),
        (["--path", "block.pt", "--block-size", "4"], 2, "blocks of 1 to 3"),
        (["--beta", "0"], 2, "--beta 0: must be between 1"),
        (["--tau", "-1"], 2, "--tau -1.0: must be 0 or more"),
        (["--tau", "nan"], 2, "--tau nan"),
        (["--controller", "clever"], 2, "--controller: invalid choice: 'clever'"),
        (["--controller", "acceptance-head"], 2, "acceptance-head: there is no acceptance head"),
        (["--controller", "heuristic", "--strategy", "AR"], 2, "heuristic: there is nothing to"),
        (["--confidence-threshold", "1.5"], 2, "--confidence-threshold 1.5: must be between 0"),
        (["--stop-threshold", "-1"], 2, "--stop-threshold -1.0: must be between 0 and 1"),
        (["--min-draft", "3", "--max-draft", "2"], 2, "--min-draft 3: is above --max-draft 2"),
        (["--max-draft", "5"], 2, "--max-draft 5: is above the block size, 4"),
        (["--strategy", "greedy"], 2, "--strategy: invalid choice: 'greedy'"),
        (["--batch", "0"], 2, "--batch 0: must be at least 1"),
        (["--batch", "many"], 2, "--batch: invalid int value: 'many'"),
        (["--strategy", "fairseq", "--beam", "0"], 2, "--beam 0: must be at least 1"),
        (["--warmup", "-1"], 2, "--warmup -1"),
        (["--fp16", "--cpu"], 2, "--fp16: needs a GPU; on the CPU use --bf16"),
        (["--fp16", "--bf16"], 2, "--fp16 and --bf16"),
        (["--sampling-topk", "3"], 2, "--sampling-topk, --sampling-topp: give --sampling too"),
        (["--sampling", "--sampling-topp", "2"], 2, "--sampling-topp 2.0: must be at most 1"),
        (["--sampling", "--beta", "3"], 2, "--beta 3 --tau 0.0: go without --sampling"),
        (["--sampling", "--tau", "2"], 2, "--beta 1 --tau 2.0: go without --sampling"),
        (["--strategy", "AR", "--acceptance-head", "x"], 2, "--acceptance-head x: --strategy AR"),
        (["--temperature", "nan"], 2, "--temperature nan: must be a number from 1e-06 on"),
        (["--sampling", "--strategy", "drafter"], 2, "--sampling: the drafter alone takes"),
        (["--sampling", "--controller", "oracle"], 2, "--controller oracle: looks at drafted"),
        (["--no-repeat-ngram-size", "3"], 2, "--no-repeat-ngram-size 3: not supported"),
        (["--nbest", "2"], 2, "--nbest 2"),
        (["--min-len", "20"], 2, "--min-len 20: is above the maximum length"),
        (
            ["--max-len-a", "0.1", "--max-len-b", "0", "--min-len", "2"],
            1,
            "in.txt: line 1: --min-len 2: is above the maximum length of a source of",
        ),
        (
            ["--max-len-a", "9", "--min-len", "64"],
            2,
            "--min-len 64: is above the maximum length, 63",
        ),
        (["--strategy", "fairseq", "--lenpen", "1e20"], 2, "--lenpen 1e+20: is too large"),
        (["--beta", "9" * 20], 2, f"--beta {'9' * 20}: must be from -2147483647 to"),
        (["--max-len-b", "9" * 20], 2, f"--max-len-b {'9' * 20}: must be from -2147483647 to"),
        (
            ["--controller", "tree", "--tree-nodes", "100000"],
            2,
            "--tree-nodes 100000: must be betw",
        ),
        (["--temperature", "0"], 2, "--temperature 0.0: must be a number from"),
        (["--post-process", "nonsense"], 2, "--post-process nonsense"),
        (["--strategy", "fairseq", "--sampling-topk", "3"], 2, "give --sampling too"),
        (["--strategy", "fairseq", "--sampling", "--sampling-topp", "2"], 2, "2.0: must be at mos"),
        (["--no-such-flag"], 2, "unrecognized arguments: --no-such-flag"),
        (["--user-dir", "no_such_folder"], 2, "--user-dir no_such_folder: cannot be imported"),
        (["--source-lang", "fr"], 1, "dict.fr.txt: no such file; the data directory must hold"),
        (["--input-path", "missing"], 1, "missing: cannot be read"),
        (["--input-path", "."], 1, "cannot be read"),
        (["--output-path", "."], 1, "is a directory"),
        (["--output-path", "nowhere/out"], 1, "nowhere; create it"),
        (["--output-path", "-", "--resume"], 1, "--resume: needs a file"),
        (["--output-path", "/dev/null", "--resume"], 1, "--resume: /dev/null is no ordinary file"),
        (["--stats-json", "nowhere/stats"], 1, "--stats-json nowhere/stats: there is no folder"),
        (["--trace", "nowhere/trace"], 1, "--trace nowhere/trace: there is no folder"),
        (["--trace", "-"], 1, "--trace -: cannot go to standard output; name a file"),
        (["--bpe", "subword_nmt", "--bpe-codes", "missing"], 1, "--bpe subword_nmt: cannot be"),
        (["--bpe", "sentencepiece"], 1, "--bpe sentencepiece: cannot be set up"),
        (["--tokenizer", "nonsense"], 2, "--tokenizer: invalid choice"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_errors_are_one_line(
    world: Path,
    tmp_path: Path,
    run: RunScript,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    status: int,
    message: str,
) -> None:
    monkeypatch.chdir(world)
    out = tmp_path / "out.txt"
    out.write_text("precious\n")
    assert run(*flags) == status
    assert message in one_error(capfd)
    if flags[0] != "--max-len-a":  # a fault that only the input shows
        assert out.read_text() == "precious\n"
    assert lines_of(world / "in.txt") == SENTENCES


@pytest.mark.parametrize(
    ("strategy", "missing", "message"),
    [
        ("specdec", "path", "--path: give the drafter"),
        ("drafter", "path", "--path: give the drafter"),
        ("specdec", "AR_path", "--AR-path: give the verifier"),
        ("AR", "AR_path", "--AR-path: give the verifier"),
        ("fairseq", "AR_path", "--AR-path: give the verifier"),
        ("AR", "path", None),
        ("fairseq", "path", None),
        ("drafter", "AR_path", None),
    ],
)
def test_models_that_a_strategy_needs(
    run: RunScript,
    capfd: pytest.CaptureFixture[str],
    strategy: str,
    missing: str,
    message: str | None,
) -> None:
    status = run("--quiet", **{"strategy": strategy, missing: None})
    if message is None:
        assert status == 0
    else:
        assert status == 2
        assert message in one_error(capfd)


def test_a_drafter_that_needs_its_verifier(
    world: Path, run: RunScript, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(strategy="drafter", path=str(world / "shared.pt"), AR_path=None) == 2
    assert "--AR-path" in one_error(capfd)
    assert run("--quiet", strategy="drafter", path=str(world / "shared.pt")) == 0


def test_other_dictionaries(
    world: Path, tmp_path: Path, run: RunScript, capfd: pytest.CaptureFixture[str]
) -> None:
    for language in ("en", "de"):
        make_dictionary(30).save(str(tmp_path / f"dict.{language}.txt"))
    assert run(data=tmp_path) == 1
    message = one_error(capfd)
    assert "verifier.pt" in message
    assert "another source dictionary" in message
    (tmp_path / "dict.de.txt").write_text("no count\n")
    assert run(data=tmp_path) == 1
    assert "dict.de.txt: is no fairseq dictionary" in one_error(capfd)


def test_data_directory(tmp_path: Path, run: RunScript, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(data=tmp_path / "missing") == 1
    assert "missing: no such folder" in one_error(capfd)
    make_dictionary().save(str(tmp_path / "dict.en.txt"))
    assert run(data=tmp_path) == 1
    assert "dict.de.txt: no such file" in one_error(capfd)
    make_dictionary().save(str(tmp_path / "dict.de.txt"))
    assert run("--bpe", "subword_nmt", data=tmp_path) == 1
    assert "--bpe-codes" in one_error(capfd)


def test_languages(
    world: Path, tmp_path: Path, run: RunScript, capfd: pytest.CaptureFixture[str]
) -> None:
    nameless = {"AR_path": str(world / "nameless.pt"), "strategy": "AR"}
    assert run(**nameless) == 1
    assert "--source-lang" in one_error(capfd)
    assert run("--quiet", "-s", "en", "-t", "de", **nameless) == 0
    # Where the data directory is one that fairseq-preprocess made, its files say.
    for name in ("dict.en.txt", "dict.de.txt"):
        (tmp_path / name).write_bytes((world / name).read_bytes())
    (tmp_path / "train.en-de.en.bin").touch()
    assert run("--quiet", data=tmp_path, **nameless) == 0


def test_truncated_checkpoint(
    world: Path, tmp_path: Path, run: RunScript, capfd: pytest.CaptureFixture[str]
) -> None:
    damaged = tmp_path / "damaged.pt"
    damaged.write_bytes((world / "verifier.pt").read_bytes()[:5000])
    assert run(AR_path=str(damaged)) == 1
    assert "damaged.pt" in one_error(capfd)


@pytest.mark.parametrize("flag", ["--batch", "--warmup", "--seed", "--beam", "--max-len-b"])
@pytest.mark.parametrize("value", ["99999999999999999999", "-99999999999999999999"])
def test_numbers_beyond_all_use_are_refused_by_their_flag(
    run: RunScript, capsys: pytest.CaptureFixture[str], flag: str, value: str
) -> None:
    assert run(flag, value) == 2
    assert (
        capsys.readouterr().err
        == f"inference.py: {flag} {value}: must be from -2147483647 to 2147483647\n"
    )


def test_user_dir_is_imported(tmp_path: Path, run: RunScript) -> None:
    folder = tmp_path / "users_own_plugin"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    try:
        assert run("--user-dir", str(folder)) == 0
        assert "users_own_plugin" in sys.modules
    finally:
        sys.modules.pop("users_own_plugin", None)
        sys.path[:] = [path for path in sys.path if path != str(tmp_path)]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_no_space_left(run: RunScript, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(output_path="/dev/full") == 1
    assert "No space left" in one_error(capfd)
    assert run(trace="/dev/full") == 1
    assert "--trace /dev/full" in capfd.readouterr().err.splitlines()[-1]
    assert run(stats_json="/dev/full") == 1
    assert "--stats-json /dev/full" in capfd.readouterr().err.splitlines()[-1]


def test_memory_of_the_gpu(
    run: RunScript, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise torch.cuda.OutOfMemoryError("many\nlines")

    monkeypatch.setattr(script, "load_translator", fail)
    assert run("--batch", "7") == 1
    assert "--batch 7" in one_error(capfd)


def test_closed_standard_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InferenceError, match="standard input is closed"):
        InputLines.open("-")
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(InferenceError, match="standard output is closed"):
        OutputLines("-")


def test_nobody_listens(
    run: RunScript, tmp_path: Path, greedy: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert run("--stats-json", str(tmp_path / "stats.json")) == 0
    assert lines_of(tmp_path / "out.txt") == greedy
    assert json.loads((tmp_path / "stats.json").read_text())["sentences"] == len(greedy)


def test_a_full_disk_leaves_whole_lines(
    run: RunScript, tmp_path: Path, greedy: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("\n".join(SENTENCES * 30) + "\n")
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, most[1]))
    try:
        assert run(input_path=str(source)) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
        signal.signal(signal.SIGXFSZ, handler)
    assert f"{out}: cannot be written to (File too large); lines before" in one_error(capfd)
    kept = out.read_text()
    assert kept.endswith("\n")
    assert 6000 - max(map(len, greedy)) <= len(kept) <= 6000
    assert run("--resume", input_path=str(source)) == 0
    assert lines_of(out) == greedy * 30
    assert out.read_text().startswith(kept)


def test_input_that_breaks_off() -> None:
    class Broken(io.BytesIO):
        def readline(self, size: int | None = -1) -> bytes:
            line = super().readline()
            if not line:
                raise OSError(5, "Input/output error")
            return line

    lines = InputLines(Broken(b"one\ntwo\n"))
    assert [line.text for line in lines] == ["one", "two"]
    with pytest.raises(InferenceError, match=r"standard input: cannot be read .*Input/output"):
        lines.check()
    assert lines.total() is None


def test_settings_are_checked_without_a_command_line(world: Path) -> None:
    with pytest.raises(ValueError, match="--strategy beam: must be one of"):
        make_settings(world, strategy="beam")
    with pytest.raises(ValueError, match="dtype int8"):
        make_settings(world, dtype="int8")


# As a program


def command(world: Path, *flags: str) -> list[str]:
    pair = ["--path", str(world / "drafter.pt"), "--AR-path", str(world / "verifier.pt")]
    return [sys.executable, str(SCRIPT), str(world), *pair, "--max-len-b", "15", *flags]


def environment() -> dict[str, str]:
    # These models do not say which dictionaries they have, of which there would be a warning.
    return {**os.environ, "OMP_NUM_THREADS": "1", "LOGLEVEL": "ERROR"}


def test_typed_lines_are_answered_at_once(world: Path, tmp_path: Path, greedy: list[str]) -> None:
    process = subprocess.Popen(
        command(world),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=environment(),
        text=True,
        # Tests that run in the background inherit that it is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for sentence, answer in zip(SENTENCES[:3], greedy, strict=False):
        process.stdin.write(sentence + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == answer + "\n"
    process.send_signal(signal.SIGINT)
    process.wait(timeout=60)  # before its input ends, which would end it too
    out, err = process.communicate()
    assert process.returncode == 130
    assert out == ""
    assert err.splitlines() == [
        "inference.py: interrupted; the lines written so far are complete (see --resume)"
    ]


def test_a_reader_that_has_had_enough(world: Path, tmp_path: Path, greedy: list[str]) -> None:
    source = tmp_path / "in.txt"
    source.write_text("\n".join(SENTENCES * 400) + "\n")
    process = subprocess.Popen(
        command(world, "--input-path", str(source)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=environment(),
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == greedy[0] + "\n"
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=60) == 0


def test_distillation(world: Path, tmp_path: Path, greedy: list[str]) -> None:
    text, out = tmp_path / "bpe", tmp_path / "distilled"
    text.mkdir()
    for split in ("train", "valid", "test"):
        for language in ("en", "de"):
            (text / f"{split}.{language}").write_text("\n".join(SENTENCES) + "\n")
    (out / "bpe").mkdir(parents=True)

    def distill(*flags: str) -> subprocess.CompletedProcess[str]:
        arguments = ["--keep-valid", world / "verifier.pt", world, text, out, "en", "de", *flags]
        return subprocess.run(
            [SCRIPT.parent / "distill.sh", *arguments],
            env={**environment(), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )

    # A mistyped flag leaves the folder as good as new.
    for flag in ("--beam-size", "--max-len-a"):
        mistyped = distill("--max-len-b", "15", "--batch", "2", flag, "many")
        assert mistyped.returncode == 2
        assert not (out / "bpe" / "train.de").exists()
    done = distill("--max-len-b", "15", "--batch", "2")
    assert done.returncode == 0, done.stderr
    assert lines_of(out / "bpe" / "train.de") == greedy
    for split in ("valid", "test"):
        assert lines_of(out / "bpe" / f"{split}.de") == SENTENCES
        assert (out / "bin" / f"{split}.en-de.de.bin").exists()
    assert (out / "bin" / "dict.de.txt").read_text() == (world / "dict.de.txt").read_text()
    assert (out / "bin" / "train.en-de.de.bin").exists()
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    again = distill("--max-len-b", "9")
    assert again.returncode == 1
    assert "was begun with another verifier, text or flags" in again.stderr
    (out / "made_with").unlink()
    assert distill("--max-len-b", "15", "--batch", "2").returncode == 1
    del before[out / "made_with"]
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
