"""The scripts that bring text, prepare it, and make more of it."""

from __future__ import annotations

import gzip
import io
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from email.message import Message
from pathlib import Path

import pytest
import torch
from conftest import make_verifier
from fairseq import options
from fairseq_cli import preprocess
from helpers.models.drafters import make_block, make_causal, save_checkpoint
from helpers.models.trained import Trained
from helpers.runs.scripts_here import SCRIPTS, TOOLS, call, load_script, run, run_shell

from specdec_plugins.checkpoints.loading import load_state
from specdec_plugins.cli import inference, translate_corpus
from specdec_plugins.files.errors import InferenceError

LIST = SCRIPTS.parent / "data" / "symbols.tsv"


def python(script: str, *arguments: object) -> str:
    return call(load_script(script.removesuffix(".py")), *arguments)


def binarise(argv: list[str]) -> None:
    """``fairseq-preprocess`` in this process."""
    preprocess.main(options.get_preprocessing_parser().parse_args(argv))


def lines_of(path: Path) -> list[str]:
    return path.read_text("utf-8").split("\n")[:-1]


def make_text(folder: Path) -> Path:
    """Raw text of three splits; nothing ends the last line of some files."""
    rng = random.Random(0)
    words = ["red", "blue", "ball", "car's", "stone", "here", "there", "blue-green", "a"]
    folder.mkdir()
    for split, count in (("train", 60), ("valid", 6), ("test", 6)):
        rows = [rng.choices(words, k=rng.randint(2, 7)) for _ in range(count)]
        for lang, order in (("en", 1), ("de", -1)):
            text = "\n".join(" ".join(row[::order]) + "." for row in rows)
            (folder / f"{split}.{lang}").write_text(text + "\n" * (lang == "en"), "utf-8")
    return folder


def test_multi30k_from_a_mirror(tmp_path: Path) -> None:
    (tmp_path / "mirror").mkdir()
    for name, count in (("train", 29000), ("val", 1014), ("test_2016_flickr", 1000)):
        for lang in ("en", "de"):
            with gzip.open(tmp_path / f"mirror/{name}.{lang}.gz", "wt", compresslevel=1) as file:
                file.write(f"{name} {lang}\r\n" * count)
    folder = tmp_path / "mirror"
    for mirror in (folder.as_uri(), folder):
        python("get_data.py", "multi30k", tmp_path / "out", "--mirror", mirror)
        assert lines_of(tmp_path / "out/valid.de") == ["val de"] * 1014
        shutil.rmtree(tmp_path / "out")


def test_a_download_that_breaks_off_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Response(io.BytesIO):
        headers = Message()

    Response.headers["Content-Length"] = "100"
    module = load_script("get_data")
    monkeypatch.setattr(module.urllib.request, "urlopen", lambda _: Response(b"half"))
    assert module.main(["multi30k", str(tmp_path)]) == 1
    assert "train.en.gz: 4 of 100 bytes came; repeat it" in capsys.readouterr().err
    assert not [*(tmp_path / "download").iterdir()]
    with tarfile.open(tmp_path / "download/a.tgz", "w"):
        pass
    with pytest.raises(InferenceError, match=r"a\.tgz: holds no b"):
        module.extract(tmp_path / "download/a.tgz", "b")
    for corpus, direction in (("wmt14", "en-fr"), ("multi30k", "de-en")):
        with pytest.raises(SystemExit):
            module.main([corpus, str(tmp_path), "--direction", direction])
        assert f"--direction {direction}: is not of {corpus}" in capsys.readouterr().err


def test_wmt_is_cleaned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load_script("get_data")
    url, name = next(iter(module.WMT["wmt16"].items()))
    monkeypatch.setitem(module.WMT, "wmt16", {url: name})
    monkeypatch.setattr(module.subprocess, "run", lambda *_, **__: None)
    pairs = [
        (b"one two", b"eins  zwei\xe2\x80\xa8drei"),
        (b"a", b"a b"),
        (b"", b"x"),
        (b"\xff", b"y"),
    ]
    (tmp_path / "download").mkdir()
    with tarfile.open(tmp_path / "download" / url.rpartition("/")[2], "w:gz") as tar:
        for side, lang in enumerate(("en", "ro")):
            (tmp_path / lang).write_bytes(b"".join(pair[side] + b"\n" for pair in pairs))
            tar.add(tmp_path / lang, f"a/folder/{name}.{lang}")
    module.get_wmt("wmt16", tmp_path, "ro-en", None)
    assert lines_of(tmp_path / "train.en") == ["one two"]
    assert lines_of(tmp_path / "train.ro") == ["eins zwei drei"]


def test_prepare_data(tmp_path: Path) -> None:
    """By its own codes and dictionaries, and by given ones. It goes on with what is whole, and
    refuses other text and a folder of somebody else."""
    raw, out = make_text(tmp_path / "raw"), tmp_path / "out"
    flags = (raw, out, "en", "de", 30)

    def prepare(*arguments: object) -> tuple[int, str]:
        return run_shell(SCRIPTS / "prepare_data.sh", *arguments, fairseq_preprocess=binarise)

    assert prepare(*flags)[0] == 0
    tokens = lines_of(out / "tok/train.en")
    assert len(tokens) == 60
    assert "blue @-@ green" in " ".join(tokens)
    assert "car &apos;s" in " ".join(tokens)
    assert [line.replace("@@ ", "") for line in lines_of(out / "bpe/train.en")] == tokens
    dictionary = (out / "bin/dict.de.txt").read_bytes()
    given = ["--codes", out / "codes", "--srcdict", out / "bin/dict.en.txt"]
    second = tmp_path / "second"
    assert prepare(out / "tok", second, "en", "de", "--tokenized", *given)[0] == 0
    for name in ("bpe/train.de", "bin/dict.de.txt", "bin/train.en-de.de.bin"):
        assert (second / name).read_bytes() == (out / name).read_bytes()
    (out / "bpe/train.en").write_text("made before\n" * 60)
    shutil.rmtree(out / "bin")
    assert prepare(*flags)[0] == 0
    assert (out / "bin/dict.de.txt").read_bytes() != dictionary
    assert prepare(*flags[:-1], 31)[0] == 1
    (tmp_path / "own").mkdir()
    (tmp_path / "own/notes").touch()
    assert prepare(raw, tmp_path / "own", "en", "de")[0] == 1
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["notes"]
    for line, fault in ((b"Eine\rZeile.\n", "valid.de:1"), (b"\xff.\n", "valid.de: is not UTF-8")):
        (raw / "valid.de").write_bytes(line * 6)
        status, said = prepare(raw, tmp_path / "new", "en", "de")
        assert status == 1
        assert fault in said
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("arguments", "status", "fault"),
    [
        (["4O00"], 2, "MERGES 4O00: must be a number of at least 1"),
        (["--workers", "0"], 2, "--workers 0: must be a number of at least 1"),
        (["--codes", "raw/train.en"], 1, "raw/train.en: holds no BPE codes"),
    ],
)
def test_mistyped_values_begin_no_folder(
    arguments: list[str], status: int, fault: str, tmp_path: Path
) -> None:
    make_text(tmp_path / "raw")
    command = (SCRIPTS / "prepare_data.sh", "raw", "out", "en", "de", *arguments)
    done = run(*command, folder=tmp_path, status=status)
    assert done.stderr == f"prepare_data.sh: {fault}\n"
    assert not (tmp_path / "out").exists()
    done = run(SCRIPTS / "distill.sh", "--workers", status=2)
    assert done.stderr == "distill.sh: --workers : must be a number of at least 1\n"


def test_recombined_sentences_are_new(tmp_path: Path) -> None:
    source = ["a b@@ c d e", "f c d g", "h d i"] * 3
    (tmp_path / "train.en").write_text("\n".join(source) + "\n", "utf-8")
    made = python("recombine.py", tmp_path / "train.en", 4)
    assert made == python("recombine.py", tmp_path / "train.en", 4)
    lines = made.splitlines()
    assert 0 < len(lines) == len(set(lines))
    assert not set(lines) & set(source)
    (tmp_path / "empty").touch()
    for name, fault in (("empty", "is empty"), ("none", "No such file or directory")):
        done = run(sys.executable, SCRIPTS / "recombine.py", tmp_path / name, 4)
        assert done.returncode == 1
        assert done.stderr == f"recombine.py: {tmp_path / name}: {fault}\n"
    done = run(sys.executable, SCRIPTS / "recombine.py", tmp_path / "train.en", 400)
    made = len(done.stdout.splitlines())
    assert done.returncode == 1
    assert made >= 4
    assert done.stderr.endswith(f"train.en: gives {made} new sentences, not 400\n")


AVERAGE = """
import sys
folders = sys.argv[1:]
sys.argv[0] = "average_checkpoints.py"
from average_checkpoints import main
for folder in folders:
    argv = ["--inputs", folder, "--output", folder + "/average.pt"]
    argv += ["--num-update-checkpoints", "2", "--checkpoint-upper-bound"]
    assert main([*argv, "3"]) == 0
    assert main([*argv, "1"]) == 1
"""


def test_averaged_checkpoints(tmp_path: Path) -> None:
    """The last two up to the third of four: of both kinds of drafters and of verifiers. In a
    process of its own: nothing else registers there what checkpoints need."""
    kinds = {"block": make_block, "block_causal": make_causal, "verifier": make_verifier}
    for kind, make in kinds.items():
        (tmp_path / kind).mkdir()
        for number in (1, 2, 3, 4):
            save_checkpoint(tmp_path / kind / f"checkpoint_1_{number}.pt", make(seed=number))
        (tmp_path / kind / "checkpoint_1_3.pt.tmp").write_text("a training was killed")
    done = run(sys.executable, "-c", AVERAGE, *kinds, folder=tmp_path, status=0, PYTHONPATH=SCRIPTS)
    assert done.stderr.splitlines() == [
        f"average_checkpoints.py: {kind}: holds 1 such checkpoints, not 2" for kind in kinds
    ]
    for kind in kinds:
        models = [
            load_state(tmp_path / kind / f"checkpoint_1_{number}.pt")["model"] for number in (2, 3)
        ]
        means = load_state(tmp_path / kind / "average.pt")["model"]
        assert means
        for name, mean in means.items():
            first, second = (model[name] for model in models)
            torch.testing.assert_close(mean, (first + second) / 2)


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        (["--inputs", "a", "b", "--num-epoch-checkpoints", "2"], "give one folder of checkpoints"),
        (["--inputs", "a", "--checkpoint-upper-bound", "2"], "give --num-update-checkpoints, too"),
        (["--inputs", "a", "./out.pt"], "is the same file as --inputs out.pt"),
    ],
)
def test_averages_of_nothing_sensible_are_refused(
    flags: list[str], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load_script("average_checkpoints").main([*flags, "--output", "out.pt"])
    assert fault in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    ["get_data", "closest", "average_checkpoints", "demo", "gpu_check", "ref_bleu", "inference"],
)
def test_scripts_without_what_they_need_end_in_one_line(name: str) -> None:
    done = run(sys.executable, "-S", SCRIPTS / f"{name}.py", "a", "b", PYTHONPATH="")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"{name}.py: No module named ")
    assert "pip install" in done.stderr


def test_the_output_that_is_most_like_the_reference_is_chosen(tmp_path: Path) -> None:
    (tmp_path / "beam").write_text("x\ta b\n\ny z\tthe h@@ at\n")
    references = tmp_path / "references"
    references.write_text("a b\nnothing\nthe hat")  # without a line feed at the end
    chosen = python("closest.py", tmp_path / "beam", references)
    assert chosen == "a b\n\nthe h@@ at\n"
    references.write_text("a b\n")
    done = run(sys.executable, SCRIPTS / "closest.py", tmp_path / "beam", references)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == f"closest.py: {tmp_path / 'beam'} has 3 lines, and {references} 1\n"


def test_symbols_are_found(tmp_path: Path) -> None:
    missing = load_script("symbols").missing_strings
    found = [missing([sign], "Etwa 50 % der Läden, siehe /a") for sign in ("50%", "5%", "//a")]
    assert found == [[], ["5%"], ["//a"]]
    (tmp_path / "de").write_text("".join(f"{line}\n" for line in lines_of(LIST)), "utf-8")
    assert "sentences: 200 of 200" in python("symbols.py", LIST, tmp_path / "de").splitlines()
    (tmp_path / "two").write_text("It costs 5%.\t5%\nAnd 6%.\t6%\n")
    (tmp_path / "de").write_text("Es kostet 5 %.\n\n")  # the last translation is empty
    assert "sentences: 1 of 2" in python("symbols.py", tmp_path / "two", tmp_path / "de")


def test_symbols_are_the_same_on_both_sides(tmp_path: Path) -> None:
    english = ["We saw 12 big dogs there.", "Yes, he came.", "A room costs 5% more now."]
    german = ["Wir sahen dort 12 große Hunde.", "Ja, er kam.", "Ein Zimmer kostet 5 % mehr."]
    for name, text in (("a.en", english), ("a.de", german)):
        (tmp_path / name).write_text("\n".join(text) + "\n", "utf-8")
    names = [tmp_path / name for name in ("a.en", "a.de", "out")]
    python("symbol_lines.py", *names, "--pairs", 50)
    symbols = load_script("symbol_lines").symbols_of
    sides = [lines_of(tmp_path / f"out.{lang}") for lang in ("en", "de")]
    assert [len(side) for side in sides] == [50, 50]
    assert all(symbols(source) == symbols(target) for source, target in zip(*sides))


def test_symbols_are_added_to_what_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No symbol has more pairs than it may, and a text without numbers will do."""
    module = load_script("symbol_lines")
    module.MAX_EACH = 3
    pairs = [(f"It costs {text}.",) * 2 for text in ["%"] * 5 + ["% $"] * 5]
    taken = module.natural(pairs, random.Random(1))
    assert sum("%" in source for source, _ in taken) == 3
    for name in ("en", "de"):
        (tmp_path / f"a.{name}").write_text("The dog sees a cat.\n" * 3)
    names = [str(tmp_path / name) for name in ("a.en", "a.de", "out")]
    assert module.main([*names, "--pairs", "10"]) == 0
    assert len(lines_of(tmp_path / "out.de")) == 10
    assert module.main([*names, "--numbers", "1"]) == 1
    assert "--numbers 1: 0 pairs have numbers" in capsys.readouterr().err
    assert module.main([names[0], names[0], names[2]]) == 1
    assert "is the same file as OUT of " in capsys.readouterr().err
    (tmp_path / "a.de").write_text("Ein Hund.\n")
    assert module.main(names) == 1
    assert "a.en has 3 lines, and " in capsys.readouterr().err


@pytest.mark.parametrize("script", ["distill.sh", "prepare_data.sh"])
def test_one_language_on_both_sides_is_refused(script: str, tmp_path: Path) -> None:
    """Its files would have one name: targets would be sources, with status 0."""
    raw = make_text(tmp_path / "raw")
    files = [raw, tmp_path / "out"]
    if script == "distill.sh":
        files = [raw / "train.en", raw, *files]
    for pair in (["en", "en"], ["de", "de"], ["en", "en", 30]):
        status, said = run_shell(SCRIPTS / script, *files, *pair)
        assert status == 2
        assert f"dict.{pair[0]}_out.txt" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_script_that_is_ended_ends_what_it_runs(number: int, tmp_path: Path) -> None:
    """Else a translation goes on with the folder's lock, and the same command is refused."""
    text = make_text(tmp_path / "text")
    for lang in ("en", "de"):
        (text / f"dict.{lang}.txt").write_text("a 1\n")
    stub = tmp_path / "bin" / "specdec-translate"
    stub.parent.mkdir()
    stub.write_text(
        f"#!/bin/sh\nsleep 60 &\necho $$ $! >{tmp_path}/new\n"
        f"mv {tmp_path}/new {tmp_path}/ids\nwait\n"
    )
    stub.chmod(0o755)
    command = [SCRIPTS / "distill.sh", text / "train.en", text, text, tmp_path / "out", "en", "de"]
    environment = {**os.environ, "PATH": f"{stub.parent}:{TOOLS}:{os.environ['PATH']}"}
    with subprocess.Popen(
        list(map(str, command)),
        env=environment,
        # Tests in the background inherit that some are ignored, and no shell can trap them then.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    ) as script:
        end = time.monotonic() + 60
        while not (tmp_path / "ids").exists():
            assert time.monotonic() < end
            time.sleep(0.05)
        script.send_signal(number)
        assert script.wait(60) == 128 + number
    for process in map(int, (tmp_path / "ids").read_text().split()):
        while Path(f"/proc/{process}").exists():
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
            if state == "Z":
                break
            assert time.monotonic() < end, "it works on"
            time.sleep(0.05)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_distilled_text(
    workers: int, trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By each way of distilling; the valid set keeps its references where that is asked for."""
    flags = ["--cpu", "--engine", "eager", "--max-len-a", 0, "--max-len-b"]

    def distill(out: str, more: list[object], *options: str) -> int:
        files = [trained.verifier, trained.data, trained.folder, tmp_path / out, "en", "de"]
        command = [SCRIPTS / "distill.sh", *options, *files, *flags, *more]
        mains = {"specdec_translate": inference.main, "fairseq_preprocess": binarise}
        mains["specdec_translate_corpus"] = translate_corpus.main
        return run_shell(*command, **mains)[0]

    assert distill("out", [5]) == 0
    assert (tmp_path / "out/bin/train.en-de.de.bin").is_file()
    # Whatever an earlier command has left, the text is what the last one asks for.
    valid = tmp_path / "out/bpe/valid.de"
    made = valid.read_bytes()
    assert distill("out", [5], "--keep-valid") == 0
    assert valid.read_bytes() == (trained.folder / "valid.de").read_bytes() != made
    assert distill("out", [5]) == 0
    assert valid.read_bytes() == made
    assert not [*(tmp_path / "out/bpe").glob("*.resume")]
    capsys.readouterr()
    assert distill("out", [1]) == 1
    assert "begun with other settings" in capsys.readouterr().err
    beam: list[object] = [5, "--strategy", "fairseq", "--beam", 2]
    assert distill("kept", beam, "--keep-valid", "--interpolate") == 0
    if workers:
        pytest.importorskip("ray", reason="Ray is not installed")
        assert distill("shared", [5], "--workers", "1") == 0
        shared, alone = (tmp_path / out / "bpe/train.de" for out in ("shared", "out"))
        assert shared.read_bytes() == alone.read_bytes()
    text, references = tmp_path / "kept/bpe", trained.folder
    assert (text / "valid.de").read_bytes() == (references / "valid.de").read_bytes()
    assert len(lines_of(text / "train.de")) == len(lines_of(references / "train.de"))


@pytest.mark.parametrize(
    ("flags", "changes", "fault"),
    [
        ([], {"train.en": b"a\rb\n", "train.de": None}, "train.en:1: holds a carriage return"),
        ([], {"valid.en": b"\xff\n"}, "valid.en: is not UTF-8"),
        ([], {"test.en": None}, "test.en: is missing"),
        (["--keep-valid"], {"valid.de": b"a\n"}, "valid.en and t/valid.de differ in number"),
        (["--interpolate", "--beam"], {"train.de": None}, "train.de: is missing"),
        (["--interpolate", "--beam"], {"train.de": b"a\n"}, "train.en and t/train.de differ"),
        (["--interpolate"], {}, "--interpolate: chooses from a beam; give --strategy fairseq"),
    ],
)
def test_text_that_cannot_be_distilled_is_refused_at_once(
    flags: list[str], changes: dict[str, bytes | None], fault: str, tmp_path: Path
) -> None:
    text = make_text(tmp_path / "t")
    for name, content in changes.items():
        (text / name).unlink()
        if content is not None:
            (text / name).write_bytes(content)
    for lang in ("en", "de"):
        (text / f"dict.{lang}.txt").write_text("a 1\n")
    beam = ["--beam=5"] * ("--beam" in flags)
    options = [flag for flag in flags if flag != "--beam"]
    command = [SCRIPTS / "distill.sh", *options, "t/dict.en.txt", "t", "t", "out", "en", "de"]
    done = run(*command, *beam, folder=tmp_path)
    assert done.returncode
    assert fault in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_tests_say_what_they_take(tmp_path: Path) -> None:
    """Wherever they are started."""
    done = run("./test.sh", "--help", folder=SCRIPTS, status=0)
    assert done.stdout.startswith("Run the tests")
