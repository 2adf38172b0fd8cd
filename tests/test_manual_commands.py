"""The commands and the Python of README and the manual, as they stand, on little text with few
updates. wmt.md's first block and extending.md have tests of their own."""

from __future__ import annotations

import re
import shlex
import shutil
import textwrap
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from test_wmt_commands import joined, make_text, run

ROOT = Path(__file__).resolve().parent.parent
PAIR = ROOT / "checkpoints/multi30k.en-de"
WMT_PAIR = ROOT / "checkpoints/wmt.en-de"
OWN_TEST = ("extending.md", "wmt.md")
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in OWN_TEST),
]
NEEDS = {
    "benchmarks.md": ("ctranslate2", "openvino", "nncf", "matplotlib"),
    "evaluation.md": ("ctranslate2", "openvino", "nncf", "matplotlib"),
    "corpus.md": ("ray",),
    "engines.md": ("ctranslate2", "openvino", "nncf"),
    "training.md": ("matplotlib",),
}
"""What a page's commands need beyond the package."""
LONG = "benchmarks.md"
"""The page whose commands are a test each: together they take half an hour."""
FIRST_WORD = re.compile(
    r"(\./)?scripts/\S+|[a-z]+-[a-z-]+|torchrun|srun|cat|cp|head|mkdir|git|pip|\.|[A-Z_]+=\S+"
)
ELSEWHERE = (
    ("git clone", "needs the repository's address"),
    ("pip install", "by tests/test_install.py"),
    (". .venv", "an environment is there"),
    ("./scripts/demo.sh", "by tests/test_demo.py"),
    ("./scripts/test.sh", "runs this"),
    ("torchrun", "by tests/tasks/test_data_parallel.py, as far as that goes without GPUs"),
    ("srun", "needs a cluster"),
    ("scripts/gpu_check.py", "by tests/test_gpu_check.py"),
    ("OMP_NUM_THREADS=1 /usr/bin/time", "needs GNU's time"),
    ("OMP_NUM_THREADS=1 scripts/check_tuning.py", "by tests/test_check_tuning.py"),
)
"""How commands begin that are not run here, and why."""
FEW = "--cpu --max-update 2 --max-tokens 400 --max-tokens-valid 400 --save-interval-updates 1"
TINY = " ".join(
    f"--{side}-embed-dim 16 --{side}-ffn-embed-dim 16 --{side}-attention-heads 2 --{side}-layers 1"
    for side in ("encoder", "decoder")
)
SHIPPED = "--encoder-embed-dim 256 --decoder-embed-dim 256 --verifier-embed-dim 256"
SHORTER = {
    "get_multi30k": "whole && cp raw/* runs/raw",
    "train_verifier": f"{FEW} {TINY}",
    "train_drafter": f"{FEW} {TINY} --verifier-embed-dim 16",
    "train_head": FEW,
    "specdec-train": f"{FEW} {TINY}",
    "fairseq-train": f"{FEW} {SHIPPED} --decoder-attention-heads 4",
    "fairseq-hydra-train": "common.cpu=true common.fp16=false optimization.max_update=2 "
    "dataset.max_tokens=400",
    "benchmark": "--lines 2 --repeats 1 --warmup 0 --batch 2 --threads 1 --precision float32 int8 "
    "--ctranslate2 float32 int8 --engine openvino --rule strict --beam 1",
    "evaluate": "--lines 2 --warmup 0 --batch 2",
    "exactness": "--input-path few.en",
    "check": "--lines 2",
}
"""What is added to a command, so that it takes seconds."""
OTHERWISE = {
    "VERIFIER SOURCES": "checkpoints/multi30k.en-de sources.en",
    "--hours 4": "--updates 2 --cpu",
    "runs/m30k en de 4000": "runs/m30k en de 60",
    "train.en 116000": "train.en 20",
    "train.en 136000": "train.en 25",
    # A pair that has learnt something, else no token is accepted.
    "runs/unseen/bin pair/verifier.pt pair/drafter.pt": "bin verifier.pt shipped.pt",
    # Nothing that was trained here accepts a token of so large a verifier.
    "runs/cpu/block/checkpoint_last.pt": "$W/drafter.pt",
    "runs/cpu/part/checkpoint_last.pt": "$W/drafter.pt",
    # The text has few tokens.
    "--draft-vocabulary 8000": "--draft-vocabulary 8",
    "--path runs/drafter-8000.pt": "--path $W/drafter.pt",
    "VERIFIER": "pair/verifier.pt",
    " PAIR": " checkpoints/multi30k.en-de",
    "DICT_DIR": "runs/m30k/bin",
    "RAW ": "runs/raw ",
    " OUT ": " runs/out ",
    "CODES": "runs/m30k/codes",
    "--seed 1 2 3 4 5": "--seed 1",
    "--repeats 7": "--repeats 1",
    "DATA_DIR": "checkpoints/multi30k.en-de",
    "BIN": "bin",
    " --recipe wmt14": " --no-fp16 --recipe wmt14",
    " --recipe config/wmt14": " --no-fp16 --recipe config/wmt14",
    "FILE": "few.en",
}
"""What is done otherwise than a page says, or stands for a name in capitals."""


def blocks(page: Path) -> list[str]:
    """The indented blocks of a page."""
    found = re.findall(r"(?:(?:^    .*)?\n)+", page.read_text("utf-8"), re.M)
    return [textwrap.dedent(block).strip("\n") for block in found if block.strip()]


def is_python(block: str) -> bool:
    return re.match(r"(from|import) ", block) is not None


def commands(page: Path) -> list[str]:
    """Each on one line; those of a block in the order of the page."""
    lines = [line for block in blocks(page) if not is_python(block) for line in joined(block)]
    found = [line for line in lines if line and FIRST_WORD.fullmatch(line.split(" ")[0])]
    return [re.sub(r"\s+#.*", "", line) for line in found]


def name_of(command: str) -> str:
    """Of its script or program, alike from both doors."""
    name = Path(command.split()[0]).stem
    return name if name in SHORTER else name.removeprefix("specdec-").replace("-", "_")


def small(command: str, first: dict[str, str]) -> str:
    """The command on little text; three dots stand for the arguments of the first of its name."""
    name = name_of(command)
    if " ... " in command:
        command = command.replace("...", first[name])
    else:
        first[name] = command.partition(" ")[2]
    for old, new in {**OTHERWISE, "SAVE_DIR": f"runs/of-{name}"}.items():
        command = command.replace(old, new)
    # With the shipped verifier, whose widths that recipe has.
    shorter = FEW if "wmt_cpu_drafter" in command else SHORTER.get(name, "")
    return f"{command} {shorter}"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What commands are run on: the project, a pair, and text of all names that pages use."""
    tmp_path = tmp_path_factory.mktemp("made")
    for name in ("checkpoints", "config", "data", "docs", "scripts", "specdec_plugins"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name in ("drafter.pt", "verifier.pt"):
        shutil.copy(PAIR / name, tmp_path)
    (tmp_path / "shipped.pt").symlink_to(PAIR / "drafter.pt")
    make_text(tmp_path / "raw")
    for name in ("raw", "wmt"):
        shutil.copytree(tmp_path / "raw", tmp_path / "runs" / name)
    drawn = ("newstest2014.drawn", "newstest2016.drawn")
    for name in drawn:
        for lang in ("en", "de"):
            shutil.copy(tmp_path / f"raw/test.{lang}", tmp_path / f"runs/wmt/{name}.{lang}")
    (tmp_path / "runs/texts").mkdir()
    for name in ("newstest2013", "Multi30k-valid"):
        shutil.copy(tmp_path / "raw/test.en", tmp_path / f"runs/texts/{name}.en")
    distinct = (f"A man of {number} sits .\n" for number in range(150))
    (tmp_path / "sources.en").write_text("".join(distinct), "utf-8")
    (tmp_path / "whole").mkdir()
    for split, count in (("train", 29000), ("valid", 1014), ("test2016", 1000)):
        for lang in ("en", "de"):
            (tmp_path / f"whole/{split}.{lang}").write_text("A line.\n" * count, "utf-8")
    (tmp_path / "corpus").mkdir()
    for split, name in (
        ("test", "talk"),
        ("test", "few"),
        ("test", "corpus/a"),
        ("valid", "valid"),
    ):
        for lang in ("en", "de"):
            shutil.copy(tmp_path / f"raw/{split}.{lang}", tmp_path / f"{name}.{lang}")
    for pair, out in ((PAIR, "shipped"), (WMT_PAIR, "runs/cpu/greedy")):
        codes = f"--codes {pair}/codes --srcdict {pair}/dict.en.txt --tgtdict {pair}/dict.de.txt"
        run(f"scripts/prepare_data.sh raw {out} en de {codes}", tmp_path)
    (tmp_path / "bin").symlink_to("shipped/bin")
    (tmp_path / "segmented.en").symlink_to("shipped/bpe/test.en")
    return tmp_path


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """The same for one test, which writes into it."""
    return shutil.copytree(made, tmp_path / "here", symlinks=True)


def ready(page: Path) -> list[str]:
    """The commands of a page that are run here, made small, with the variables of those before."""
    first: dict[str, str] = {}
    found, variables = [], ""
    for command in commands(page):
        if command.startswith(tuple(start for start, _ in ELSEWHERE)):
            continue
        if command.split("=")[0].isupper():
            variables += f"{command}; "
        else:
            found.append(variables + small(command, first))
    return found


def parts() -> Iterator[Any]:
    """The pages, and the commands of one page each by itself, since they do not need each other."""
    for page in PAGES:
        if page.name != LONG:
            yield pytest.param(page, None, id=page.name)
            continue
        for number in range(len(ready(page))):
            yield pytest.param(page, number, id=f"{page.name}-{number}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_in_capitals_are_known(page: Path) -> None:
    """Else a page has got a name that the slow tests below have not."""
    names = re.findall(r'(?<![$\w/."-])[A-Z][A-Z_]+(?![\w=."-])', " ".join(ready(page)))
    assert set(names) <= {"AR"}


@pytest.mark.slow
@pytest.mark.parametrize(("page", "number"), parts())
def test_commands(page: Path, number: int | None, folder: Path) -> None:
    for package in NEEDS.get(page.name, ()):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    for command in ready(page) if number is None else [ready(page)[number]]:
        run(command, folder)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/translate.md"])
def test_python(page: str, folder: Path) -> None:
    found = list(filter(is_python, blocks(ROOT / page)))
    assert found
    for block in found:
        assert run(f"python -c {shlex.quote(block)}", folder).strip()


@pytest.mark.slow
def test_own_dictionaries(folder: Path) -> None:
    """wmt.md's command for those who have published checkpoints."""
    command = commands(ROOT / "docs/wmt.md")[-1]
    for option, file in (
        ("codes", "codes"),
        ("srcdict", "dict.en.txt"),
        ("tgtdict", "dict.de.txt"),
    ):
        command = command.replace(f"--{option} FILE", f"--{option} {PAIR / file}")
    run(command.replace("RAW OUT", "shipped/tok runs/out"), folder)
    assert (folder / "runs/out/bin/train.en-de.de.bin").is_file()
