"""The manual's commands at the size of WMT, as they are written, with tiny models and text."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from scripts_here import run as run_program

ROOT = Path(__file__).resolve().parent.parent
SIDES = (
    "--encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-ffn-embed-dim 32 "
    "--decoder-ffn-embed-dim 32 --encoder-layers 1 --decoder-layers 1 "
    "--encoder-attention-heads 2 --decoder-attention-heads 2"
)
SMALL = (
    f"{SIDES} --cpu --no-fp16 --max-update 16 --save-interval-updates 1 --max-tokens 200 "
    "--update-freq 1 --num-workers 0 --disable-validation"
)
SHORT = "--cpu --max-len-a 0 --max-len-b 6"
OTHERWISE = {
    "prepare_data.sh": {" 32000": " 60", " 12000": " 60"},
    "distill.sh": {
        "--workers 8 ": "",
        "--fp16 --shard-lines 20000": "",
        "--batch": f"{SHORT} --batch",
    },
    "inference.py": {"--fp16": f"{SHORT} --engine eager"},
}
"""What is done otherwise here than at the size of WMT."""


def commands(heading: str) -> list[str]:
    """Those under a heading of the page, each on one line."""
    sections = re.split(r"^#+ (.+)\n", (ROOT / "docs/wmt.md").read_text("utf-8"), flags=re.M)
    section = sections[sections.index(heading) + 1]
    block = "\n".join(line[4:] for line in section.splitlines() if line.startswith("    "))
    return [re.sub(r"\s+#.*", "", line) for line in joined(block)]


def joined(block: str) -> list[str]:
    return re.sub(r" \\\n\s*", " ", block).splitlines()


def make_text(raw: Path) -> None:
    rng = random.Random(0)
    words = ["red", "blue", "ball", "hat", "stone", "here", "there", "lies", "stands", "a"]
    raw.mkdir()
    for split, count in (("train", 60), ("valid", 6), ("test", 6)):
        rows = [rng.choices(words, k=rng.randint(2, 7)) for _ in range(count)]
        for lang, order in (("en", 1), ("de", -1)):
            text = "".join(" ".join(row[::order]) + ".\n" for row in rows)
            (raw / f"{split}.{lang}").write_text(text, "utf-8")


def small(command: str, folder: Path, recipe: str) -> str:
    """The command for tiny models, with its files in ``folder``."""
    script = command.split()[0].removeprefix("scripts/")
    command = command.replace("wmt14_block", recipe)
    command = command.replace("layers 1,2", "layers 1").replace("vocabulary 8000", "vocabulary 3")
    replacements = OTHERWISE.get(script, {})
    assert not replacements or any(old in command for old in replacements), command
    for old, new in replacements.items():
        command = command.replace(old, new)
    if script.startswith("train_"):
        command += f" {SMALL if recipe.startswith('wmt14') else SMALL.replace('--no-fp16 ', '')}"
        causal = "wmt14_block_causal" in command or "wmt_cpu_drafter" in command
        command += " --verifier-embed-dim 16" * causal * ("drafter" in script)
    return command.replace("runs/", f"{folder}/")


def run(command: str, folder: Path = ROOT) -> str:
    return run_program("bash", "-c", command, folder=folder, status=0, OMP_NUM_THREADS=1).stdout


@pytest.mark.slow
def test_from_text_to_bleu(tmp_path: Path) -> None:
    """Teacher, distillation, verifier, and either drafter."""
    first, *others = commands("At the size of WMT")
    assert first == "scripts/get_wmt14_en_de.sh runs/raw en-de"
    make_text(tmp_path / "raw")
    of_drafters = next(i for i, one in enumerate(others) if "train_drafter" in one)
    for command in others[:of_drafters]:
        run(small(command, tmp_path, "wmt14_block"))
    for recipe in ("wmt14_block", "wmt14_block_causal"):
        for command in others[of_drafters:]:
            output = run(small(command, tmp_path, recipe).replace("/drafter", f"/{recipe}"))
        assert "BLEU4 = " in output
        assert "nrefs:1" in output
    for command in commands("Our drafter"):
        run(small(command, tmp_path, "wmt14_block"))


@pytest.mark.slow
def test_with_two_cpu_cores(tmp_path: Path) -> None:
    make_text(tmp_path / "part")
    for command in commands("With two CPU cores"):
        whole = small(command, tmp_path, "wmt_cpu_drafter")
        # Nothing is validated here, so that no checkpoint is best.
        run(whole.replace("checkpoint_best", "checkpoint_last"))
    names = {path.name for path in (tmp_path / "cpu/pair").iterdir()}
    assert names == {"verifier.pt", "drafter.pt", "dict.en.txt", "dict.de.txt", "codes"}
