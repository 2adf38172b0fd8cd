"""The scripts that bring corpora, against local mirrors, and the one that prepares them."""

import gzip
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from fairseq.data.data_utils import load_indexed_dataset
from scripts_here import SCRIPTS
from scripts_here import run as run_program
from trained import made_once

from specdec_plugins.files.lock import OutputLock

ROOT = Path(__file__).resolve().parents[1]
MULTI30K = ROOT.parent / "shared" / "data" / "multi30k"
MULTI30K_LINES = {"train": 29000, "val": 1014, "test_2016_flickr": 1000}


def run(script: str, *arguments: object, **variables: object) -> "subprocess.CompletedProcess[str]":
    return run_program(SCRIPTS / script, *arguments, **variables)  # type: ignore[arg-type]


def refused(done: "subprocess.CompletedProcess[str]", *mentioned: object) -> bool:
    """Whether the run failed, and its last line says all that is to be mentioned."""
    last = done.stderr.splitlines()[-1]
    return (
        done.returncode != 0
        and "Traceback" not in done.stderr
        and all(str(word) in last for word in mentioned)
    )


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def leftovers(folder: Path) -> list[Path]:
    return list(folder.rglob("*.part"))


# --- the example sentences


def test_example_sentences_are_pairs() -> None:
    english, german = (lines_of(ROOT / "data" / f"example.{lang}") for lang in ("en", "de"))
    assert len(english) == len(german) == 40
    assert all(6 <= len(line.split()) <= 20 and line == line.strip() for line in english)
    assert len(set(english)) == len(set(german)) == 40
    assert all(german)


@pytest.mark.skipif(not MULTI30K.is_dir(), reason="Multi30k is not at hand")
@pytest.mark.parametrize("lang", ["en", "de"])
def test_example_sentences_are_not_from_multi30k(lang: str) -> None:
    def grams(line: str) -> set[tuple[str, ...]]:
        words = re.findall(r"\w+", line.lower())
        return {tuple(words[i : i + 7]) for i in range(len(words) - 6)}

    own = set().union(*map(grams, lines_of(ROOT / "data" / f"example.{lang}")))
    for file in MULTI30K.glob(f"*.{lang}"):
        for line in lines_of(file):
            assert not own & grams(line), f"{file.name}: {line}"


# --- Multi30k


@pytest.fixture(scope="module")
def multi30k(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the repository's files, of the right length, made up."""
    folder = tmp_path_factory.mktemp("raw")
    for name, lines in MULTI30K_LINES.items():
        for lang in ("en", "de"):
            text = "".join(f"{name} {lang} {i}\n" for i in range(lines))
            with gzip.open(
                folder / f"{name}.{lang}.gz", "wt", encoding="utf-8", compresslevel=1
            ) as file:
                file.write(text)
    return folder


def assert_is_multi30k(folder: Path) -> None:
    for split, (name, lines) in zip(
        ("train", "valid", "test"), MULTI30K_LINES.items(), strict=True
    ):
        for lang in ("en", "de"):
            found = lines_of(folder / f"{split}.{lang}")
            assert len(found) == lines
            assert found[0] == f"{name} {lang} 0"
            assert found[-1] == f"{name} {lang} {lines - 1}"
    assert not leftovers(folder)


def test_multi30k_is_downloaded_once(multi30k: Path, tmp_path: Path) -> None:
    done = run("get_multi30k.sh", tmp_path, MULTI30K_URL=multi30k.as_uri())
    assert done.returncode == 0, done.stderr
    assert_is_multi30k(tmp_path)
    assert f"prepare_data.sh {tmp_path} {tmp_path}.prepared en de" in done.stdout
    # All is there: a second run asks the network for nothing.
    again = run("get_multi30k.sh", tmp_path, MULTI30K_URL="file:///nowhere")
    assert again.returncode == 0
    assert "downloading" not in again.stderr


def test_multi30k_resumes_after_a_failed_download(multi30k: Path, tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    for name in ("train.en.gz", "train.de.gz"):
        shutil.copy(multi30k / name, mirror)
    done = run("get_multi30k.sh", tmp_path / "out", MULTI30K_URL=mirror.as_uri())
    assert refused(done, "val.en.gz", "MULTI30K_URL")
    assert not (tmp_path / "out" / "valid.en").exists()
    assert not leftovers(tmp_path)
    again = run("get_multi30k.sh", tmp_path / "out", MULTI30K_URL=multi30k.as_uri())
    assert again.returncode == 0
    assert "train.en.gz" not in again.stderr
    assert_is_multi30k(tmp_path / "out")


def test_multi30k_downloads_without_curl(multi30k: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("bash", "dirname", "mkdir", "rmdir", "rm", "mv", "cat", "awk", "gzip", "python3"):
        # A version manager's python3 is a script that needs more tools than these.
        found = sys.executable if tool == "python3" else shutil.which(tool)
        assert found is not None
        (tools / tool).symlink_to(found)
    command = [str(tools / "bash"), str(SCRIPTS / "get_multi30k.sh")]
    for url, out in ((multi30k.as_uri(), "out"), ("file:///nowhere", "other")):
        done = subprocess.run(
            [*command, str(tmp_path / out)],
            capture_output=True,
            text=True,
            env={"PATH": str(tools), "MULTI30K_URL": url},
        )
        if out == "out":
            assert done.returncode == 0, done.stderr
            assert_is_multi30k(tmp_path / out)
        else:
            assert refused(done, "could not download", "/nowhere/train.en.gz")


@pytest.mark.parametrize("layout", ["folder", "packed folder", "clone"])
def test_multi30k_is_taken_from_a_folder(layout: str, multi30k: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    if layout == "clone":
        source.mkdir()
        shutil.copytree(multi30k, source / "data" / "task1" / "raw")
    elif layout == "packed folder":
        source = multi30k
    else:
        source.mkdir()
        for name, other in (("train", "train"), ("val", "valid"), ("test_2016_flickr", "test2016")):
            for lang in ("en", "de"):
                with gzip.open(multi30k / f"{name}.{lang}.gz", "rb") as file:
                    text = file.read()
                # Windows line ends and a missing last one are put right.
                (source / f"{other}.{lang}").write_bytes(text.replace(b"\n", b"\r\n")[:-2])
    done = run("get_multi30k.sh", tmp_path / "out", source, MULTI30K_URL="file:///nowhere")
    assert done.returncode == 0, done.stderr
    assert_is_multi30k(tmp_path / "out")


def test_multi30k_refuses_what_it_cannot_use(multi30k: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert refused(
        run("get_multi30k.sh", out, tmp_path / "none"),
        "SOURCE_DIR",
        tmp_path / "none",
        "not a folder",
    )
    (tmp_path / "empty").mkdir()
    assert refused(
        run("get_multi30k.sh", out, tmp_path / "empty"),
        tmp_path / "empty",
        "holds no train.en",
        "specdec-make-pair",
    )
    assert run("get_multi30k.sh").returncode == 2

    short = tmp_path / "short"
    short.mkdir()
    (short / "train.en").write_text("only one\n")
    assert refused(
        run("get_multi30k.sh", out, short),
        short / "train.en",
        "has 1 lines",
        "29000",
        "specdec-make-pair",
    )
    assert not (out / "train.en").exists()
    assert not leftovers(out)

    damaged = tmp_path / "damaged"
    shutil.copytree(multi30k, damaged)
    (damaged / "train.de.gz").write_bytes((damaged / "train.de.gz").read_bytes()[:1000])
    done = run("get_multi30k.sh", out, MULTI30K_URL=damaged.as_uri())
    assert refused(done, out / "download" / "train.de.gz", "cannot be unpacked", "delete")

    (tmp_path / "file").write_text("")
    assert refused(run("get_multi30k.sh", tmp_path / "file" / "out"), "cannot write", "OUT_DIR")


# --- WMT

CORPORA = {
    "get_wmt14_en_de.sh": {
        "wmt13/training-parallel-europarl-v7.tgz": "training/europarl-v7.de-en",
        "wmt13/training-parallel-commoncrawl.tgz": "./commoncrawl.de-en",
        "wmt14/training-parallel-nc-v9.tgz": "training/news-commentary-v9.de-en",
    },
    "get_wmt16_en_ro.sh": {
        "training-parallel-ep-v8.tgz": "training-parallel-ep-v8/europarl-v8.ro-en",
        "OPUS-SETIMES/v2/moses/en-ro.txt.zip": "SETIMES.en-ro",
    },
}
LANGUAGES = {"get_wmt14_en_de.sh": ("en", "de"), "get_wmt16_en_ro.sh": ("en", "ro")}

# One pair a line: the first is kept, the others are each left out for a reason of their own.
PAIRS: Sequence[tuple[bytes, bytes]] = [
    ("kept\u2028as one\tline\r".encode(), b"  one two  three"),
    (b"", b"nothing on the other side"),
    (b"word " * 251, b"word " * 251),
    (b"one two three four", b"one two"),
    (b"no \xff utf-8", b"no utf-8 here"),
]

SACREBLEU_STUB = """#!/usr/bin/env bash
lines=$(case $2 in wmt13) echo 3000 ;; wmt14/full) echo 3003 ;; wmt16*) echo 1999 ;; esac)
for ((i = 0; i < lines; i++)); do echo "$2 $4 $6 $i"; done
"""


@pytest.fixture
def mirror(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[str, Path]:
    """A mirror with the archives that a script asks for, and a stand-in for sacrebleu."""
    script: str = request.param
    folder = tmp_path / "mirror"
    for archive, member in CORPORA[script].items():
        sides: dict[str, bytes] = {}
        for side, lang in enumerate(LANGUAGES[script]):
            sides[f"{member}.{lang}"] = b"".join(pair[side] + b"\n" for pair in PAIRS)
        sides[f"{member}.xx"] = b"another language\n"
        target = folder / archive
        target.parent.mkdir(parents=True, exist_ok=True)
        if archive.endswith(".zip"):
            with zipfile.ZipFile(target, "w") as zipped:
                for name, text in sides.items():
                    zipped.writestr(name, text)
        else:
            with tarfile.open(target, "w:gz") as tar:
                for name, text in sides.items():
                    (tmp_path / "member").write_bytes(text)
                    tar.add(tmp_path / "member", name)
    stub = tmp_path / "bin" / "sacrebleu"
    stub.parent.mkdir()
    stub.write_text(SACREBLEU_STUB)
    stub.chmod(0o755)
    return script, tmp_path


def get_wmt(
    script: str, folder: Path, mirror: str, *direction: str
) -> "subprocess.CompletedProcess[str]":
    path = (
        f"{folder / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    mirrors = {"WMT_URL": mirror, "WMT16_URL": mirror, "OPUS_URL": mirror}
    return run(script, folder / "out", *direction, PATH=path, **mirrors)


@pytest.mark.parametrize("mirror", list(CORPORA), indirect=True)
@pytest.mark.parametrize("reverse", [False, True])
def test_wmt_is_downloaded_cleaned_and_split(mirror: tuple[str, Path], reverse: bool) -> None:
    script, folder = mirror
    one, other = LANGUAGES[script]
    source, target = (other, one) if reverse else (one, other)
    direction = [f"{source}-{target}"] if reverse else []
    out = folder / "out"
    done = get_wmt(script, folder, (folder / "mirror").as_uri(), *direction)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(f"kept 1 of {len(PAIRS)} pairs") == len(CORPORA[script])
    assert lines_of(out / f"train.{one}") == ["kept as one line"] * len(CORPORA[script])
    assert lines_of(out / f"train.{other}") == ["one two three"] * len(CORPORA[script])
    sets = (
        ("wmt13", "wmt14/full", 3000, 3003) if other == "de" else ("wmt16/dev", "wmt16", 1999, 1999)
    )
    for split, name, lines in (("valid", sets[0], sets[2]), ("test", sets[1], sets[3])):
        for lang, side in ((source, "src"), (target, "ref")):
            found = lines_of(out / f"{split}.{lang}")
            assert len(found) == lines
            assert found[0] == f"{name} {source}-{target} {side} 0"
    assert f"prepare_data.sh {out} {out}.prepared {source} {target}" in done.stdout
    assert not leftovers(out)

    again = get_wmt(script, folder, "file:///nowhere", *direction)
    assert again.returncode == 0
    assert again.stderr == ""


@pytest.mark.parametrize("mirror", ["get_wmt16_en_ro.sh"], indirect=True)
def test_wmt_refuses_what_it_cannot_use(mirror: tuple[str, Path]) -> None:
    script, folder = mirror
    out, url = folder / "out", (folder / "mirror").as_uri()
    assert run(script).returncode == 2
    assert refused(run(script, out, "ro-de"), "ro-de: no such direction: give en-ro or ro-en")
    assert refused(
        get_wmt(script, folder, "file:///nowhere"), "could not download", "WMT16_URL or OPUS_URL"
    )
    assert not leftovers(out)

    archive = folder / "mirror" / "training-parallel-ep-v8.tgz"
    whole = archive.read_bytes()
    stored = out / "download" / archive.name
    archive.write_bytes(whole[: len(whole) // 2])
    assert refused(
        get_wmt(script, folder, url), stored, "cannot be unpacked", "delete it and run again"
    )
    stored.unlink()
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(SCRIPTS / "ref.sh", "other")
    assert refused(get_wmt(script, folder, url), stored, "does not hold europarl-v8.ro-en.en")
    stored.unlink()
    archive.write_bytes(whole)
    assert get_wmt(script, folder, url).returncode == 0

    for name in ("train.en", "train.ro"):
        (out / name).unlink()
    with open(out / "download" / "SETIMES.en-ro.ro", "a") as file:
        file.write("one line more\n")
    assert refused(
        get_wmt(script, folder, url),
        "SETIMES.en-ro.en",
        "SETIMES.en-ro.ro",
        "differ in number of lines",
    )
    assert not (out / "train.en").exists()
    assert not leftovers(out)

    for name in ("valid.en", "test.ro"):
        (out / name).unlink()
    stub = folder / "bin" / "sacrebleu"
    stub.write_text("#!/usr/bin/env bash\necho one line\n")
    assert refused(
        get_wmt(script, folder, url), "sacrebleu's wmt16/dev en-ro (src)", "has 1 lines", "1999"
    )
    stub.write_text("#!/usr/bin/env bash\necho no network >&2; exit 1\n")
    assert refused(get_wmt(script, folder, url), "wmt16/dev", "no network")
    assert not (out / "valid.en").exists()
    assert not leftovers(out)


# --- prepare_data.sh


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fifty made-up pairs for training and a few for the other splits. In several files nothing
    ends the last line."""
    colours = {
        "red": "roter",
        "blue": "blauer",
        "green": "grüner",
        "yellow": "gelber",
        "blue-green": "blau-grüner",
    }
    things = {
        "ball": "Ball",
        "hat": "Hut",
        "chair": "Stuhl",
        "car's seat": "Autositz",
        "stone": "Stein",
    }
    pairs = [
        (
            f"A {colour} {thing} lies {where[0]}.",
            f"Ein {colours[colour]} {things[thing]} liegt {where[1]}.",
        )
        for where in (("here", "hier"), ("there", "dort"))
        for colour in colours
        for thing in things
    ]
    folder = tmp_path_factory.mktemp("text")
    for split, chosen in (("train", pairs), ("valid", pairs[:5]), ("test", pairs[-5:])):
        for side, lang in enumerate(("en", "de")):
            end = "" if f"{split}.{lang}" in ("train.en", "train.de", "valid.de") else "\n"
            lines = "\n".join(pair[side] for pair in chosen) + end
            (folder / f"{split}.{lang}").write_text(lines, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def prepared(text: Path, session_folder: Path) -> Path:
    """A folder with out/, what is made of the text."""

    def prepare(folder: Path) -> None:
        (folder / "out").mkdir()
        (folder / "out" / ".lock").touch()  # as a killed run leaves it
        done = run("prepare_data.sh", text, folder / "out", "en", "de", 60)
        assert done.returncode == 0, done.stderr

    return made_once(session_folder / "prepared", prepare)


@pytest.fixture
def raw(text: Path, tmp_path: Path) -> Path:
    """The text once more, to be changed."""
    return Path(shutil.copytree(text, tmp_path / "raw"))


def test_prepare_data_makes_what_fairseq_train_reads(prepared: Path) -> None:
    out = prepared / "out"
    dictionary = (out / "bin" / "dict.en.txt").read_text(encoding="utf-8")
    assert dictionary
    assert dictionary == (out / "bin" / "dict.de.txt").read_text(encoding="utf-8")
    assert len(lines_of(out / "codes")) > 10
    for split, lines in (("train", 50), ("valid", 5), ("test", 5)):
        for lang in ("en", "de"):
            # Also where nothing ends the last line; the words of two files are then not joined.
            assert len(lines_of(out / "tok" / f"{split}.{lang}")) == lines
            assert len(lines_of(out / "bpe" / f"{split}.{lang}")) == lines
            binary = load_indexed_dataset(str(out / "bin" / f"{split}.en-de.{lang}"))
            assert len(binary) == lines
    # Tokenised as fairseq's `--tokenizer moses` does it: dashes split, apostrophes escaped.
    tokenised = (out / "tok" / "train.en").read_text(encoding="utf-8")
    assert "blue @-@ green" in tokenised
    assert "car &apos;s" in tokenised
    joined = [line.replace("@@ ", "") for line in lines_of(out / "bpe" / "train.de")]
    assert joined == lines_of(out / "tok" / "train.de")
    assert not (out / ".lock").exists()


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "preprocess.log"  # which tells times
    }


@pytest.mark.slow
def test_prepare_data_takes_given_codes_and_dictionaries(raw: Path, tmp_path: Path) -> None:
    """What one text made is used for another, in as many processes as there are to be."""
    first, second = tmp_path / "first", tmp_path / "second"
    assert run("prepare_data.sh", raw, first, "en", "de", 60, "--workers", 1).returncode == 0
    for lang in ("en", "de"):
        # Enough lines for two processes, and words that the dictionaries do not have.
        text = (raw / f"train.{lang}").read_text("utf-8") + "\n"
        (raw / f"train.{lang}").write_text(text * 120 + "Zürich zigzags 9 9 .\n", "utf-8")
    given = ["--codes", first / "codes", "--srcdict", first / "bin" / "dict.en.txt"]
    done = run("prepare_data.sh", raw, second, "en", "de", *given, "--workers", 2)
    assert done.returncode == 0, done.stderr
    assert (second / "codes").read_bytes() == (first / "codes").read_bytes()
    for lang in ("en", "de"):
        dictionary = (first / "bin" / "dict.en.txt").read_bytes()
        assert (second / "bin" / f"dict.{lang}.txt").read_bytes() == dictionary
        for kind in ("tok", "bpe"):
            found = lines_of(second / kind / f"train.{lang}")
            assert found[:-1] == lines_of(first / kind / f"train.{lang}") * 120
    both = [*given, "--tgtdict", first / "bin" / "dict.de.txt", "--tokenized"]
    done = run("prepare_data.sh", first / "tok", tmp_path / "third", "en", "de", *both)
    assert done.returncode == 0, done.stderr
    assert files_of(tmp_path / "third" / "bpe") == files_of(first / "bpe")


def test_prepare_data_goes_on(prepared: Path, raw: Path, tmp_path: Path) -> None:
    """What is whole is not made again; what was cut off is."""
    out = Path(shutil.copytree(prepared / "out", tmp_path / "out"))
    command = ("prepare_data.sh", raw, out, "en", "de", 60)
    whole = files_of(out)
    marked = out / "bpe" / "train.en"
    marked.write_text("made before\n" * 50, "utf-8")
    for name in ("tok/valid.de", "bpe/valid.de"):
        (out / name).rename(out / f"{name}.part")
    for file in (out / "bin").iterdir():
        file.unlink()
    (out / "bin").rename(out / "bin.part")
    assert run(*command).returncode == 0
    again = files_of(out)
    assert again.keys() == whole.keys()
    assert marked.read_text("utf-8").startswith("made before")
    for name in ("tok/valid.de", "bpe/valid.de", "bin/valid.en-de.de.idx"):
        assert again[name] == whole[name]
    assert again["bin/train.en-de.en.bin"] != whole["bin/train.en-de.en.bin"]
    # Of other text or with other flags nothing is gone on with.
    assert refused(run(*command[:-1], 61), out, "was begun with other text or flags")
    with open(raw / "test.en", "a") as text, open(raw / "test.de", "a") as other:
        text.write("One more.\n")
        other.write("Noch eine.\n")
    assert refused(run(*command), out, "was begun with other text or flags")
    assert files_of(out) == again


@pytest.mark.parametrize("flags", ["", "--tokenized"])
def test_prepare_data_refuses_lines_that_come_apart(raw: Path, tmp_path: Path, flags: str) -> None:
    """Which fairseq-preprocess would cut at a carriage return."""
    for split in ("train", "valid"):
        for lang in ("en", "de"):
            lines = (raw / f"{split}.{lang}").read_bytes().splitlines()
            text = b"\r\n".join([*lines, b"\r" * (split + lang == "validde")])
            (raw / f"{split}.{lang}").write_bytes(text)
    done = run("prepare_data.sh", raw, tmp_path / "out", "en", "de", 60, *flags.split())
    assert refused(done, raw / "valid.de", "differ in number of lines")
    (raw / "valid.de").write_bytes(b"Eine\rZeile.\r\n" * 5)
    done = run("prepare_data.sh", raw, tmp_path / "out", "en", "de", 60, *flags.split())
    assert refused(done, raw / "valid.de", "line 1 holds a carriage return")
    assert not (tmp_path / "out").exists()


def test_prepare_data_leaves_a_folder_to_the_run_that_has_it(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with OutputLock(out, out / ".lock"):
        done = run("prepare_data.sh", raw, out, "en", "de", 60)
        assert refused(done, f"{out}: another run is at work there")
        assert [path.name for path in out.iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        ("--codes none", "--codes none: is missing or empty"),
        ("60 --tgtdict dict", "--tgtdict dict: give --srcdict, too"),
        ("--workers 0", "--workers 0: give a whole number"),
        ("--workers", "--workers: give a value"),
        ("0", "MERGES 0: give a whole number"),
        ("many", "MERGES many: give a whole number"),
    ],
)
def test_prepare_data_names_a_bad_option(raw: Path, tmp_path: Path, flags: str, fault: str) -> None:
    done = run("prepare_data.sh", raw, tmp_path / "out", "en", "de", *flags.split())
    assert refused(done, fault)
    assert not (tmp_path / "out").exists()


def test_prepare_data_refuses_sides_that_do_not_match(raw: Path, tmp_path: Path) -> None:
    with open(raw / "valid.de", "a") as file:
        file.write("\nEine Zeile mehr.\n")
    done = run("prepare_data.sh", raw, tmp_path / "out", "en", "de")
    assert refused(done, raw / "valid.en", "differ in number of lines")
    (raw / "valid.de").unlink()
    assert refused(
        run("prepare_data.sh", raw, tmp_path / "out", "en", "de"),
        raw / "valid.de",
        "missing or empty",
    )
    assert run("prepare_data.sh", raw).returncode == 2
    done = run("prepare_data.sh", raw, tmp_path / "out", "en", "de", "60", "--cores", "2")
    assert done.returncode == 2
    assert "--cores: no such option" in done.stderr
    assert not (tmp_path / "out").exists()


# --- train_*.sh


@pytest.mark.parametrize("script", ["train_verifier.sh", "train_drafter.sh", "train_head.sh"])
def test_training_names_what_is_missing(tmp_path: Path, script: str) -> None:
    roles = {"train_verifier.sh": [], "train_drafter.sh": ["VERIFIER"]}.get(
        script, ["VERIFIER", "DRAFTER"]
    )
    files = [tmp_path / role for role in roles]
    usage = run(script)
    assert usage.returncode == 2
    assert " ".join(["BIN_DIR", *roles, "SAVE_DIR"]) in usage.stderr
    done = run(script, tmp_path / "bin", *files, tmp_path / "save")
    assert refused(done, f"BIN_DIR {tmp_path / 'bin'}: holds no dict.*.txt")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "dict.en.txt").write_text("w 1\n")
    for role, file in zip(roles, files, strict=True):
        done = run(script, tmp_path / "bin", *files, tmp_path / "save")
        assert refused(done, f"{role} {file}: is missing or empty")
        file.write_bytes(b"weights")
    assert not (tmp_path / "save").exists()
