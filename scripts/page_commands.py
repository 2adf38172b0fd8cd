#!/usr/bin/env python3
"""Run the commands of documentation pages, with small inputs in place of big ones.

    scripts/page_commands.py README.md docs/wmt.md

Run it in a copy of the clone, with the package's commands on the path. It writes its inputs to
``small`` and prints every command with its seconds. The first command that fails ends its page,
with status 1.
"""

from __future__ import annotations

import argparse
import gzip
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import NamedTuple

PAIR = "checkpoints/wmt.en-de"
TINY_MODEL = """
    --encoder-layers 1 --encoder-embed-dim 32 --encoder-ffn-embed-dim 32 --encoder-attention-heads 2
    --decoder-layers 1 --decoder-embed-dim 32 --decoder-ffn-embed-dim 32 --decoder-attention-heads 2
"""
TINY_TRAINING = (
    "--cpu --max-update 4 --update-freq 1 --save-interval-updates 2 --max-tokens 400 "
    "--max-valid-steps 4"  # else weights that know nothing write until the length limit
)
AS_WIDE = "--encoder-embed-dim 384 --verifier-embed-dim 384 --decoder-embed-dim 384"
TINY = " ".join(f"{TINY_MODEL} {TINY_TRAINING}".split())
HYDRA_SMALL = (
    "common.cpu=true common.fp16=false optimization.max_update=4 dataset.max_tokens=400"
    " model.encoder_layers=1 model.decoder_layers=1"
)
GPU_SMALL = (
    "--device cpu --small --rows 4 --tokens 96 --drafter-tokens 96 --sources 2"
    " --verifier-seconds 1 --drafter-seconds 1 --rehearsal 0.1"
)
SERVE = (
    r"\1 --workers 1 >serve.log 2>&1 & echo $! >serve.pid; "
    "until curl -sf http://127.0.0.1:5000/health; do kill -0 $(cat serve.pid) && sleep 1; done"
)
SMALL = {
    # The clean room has done these, or they are examples of usage. A comment runs nothing.
    r"^git clone .*": "# git clone: this is a copy of the clone",
    r"^\. \.venv/bin/activate": "# activate: the clean room's environment is active",
    r"^pip install .*download\.pytorch\.org.*": "# pip install: the clean room's first step",
    r"^pip install .*# with an NVIDIA GPU": "# pip install: for machines with an NVIDIA GPU",
    r"^pip install '\.\[serve.*": "# pip install: the clean room has done so",
    # The weights are not ours to ship; torchrun has tests of its own.
    r"^specdec-\w+ annalog.*|.*\bFOLDER/.*": "# published weights, which are not shipped",
    r"^torchrun .*": "# torchrun: tests/tasks/test_data_parallel.py runs it",
    # Four updates teach no token that would be accepted.
    r"^scripts/calibrate_head.py .*": "# calibrate_head.py: it has a test of its own",
    # A server answers until the page's last request.
    r"^(specdec-serve \S+).*": SERVE,
    r"^curl -N .*": r"\g<0> && kill $(cat serve.pid) && rm serve.pid",
    r"^scripts/serve_load\.py .*": r"\g<0> --sentences 2 --requests 4 --long 20 --lines 4",
    # The demo without its own environment.
    r"^\./scripts/demo\.sh.*": "python3 scripts/demo.py",
    # Downloads come from a local mirror.
    r"^scripts/get_data\.py .*": (
        r"SACREBLEU=small/sacrebleu \g<0> --mirror file://$PWD/small/mirror"
    ),
    r"multi30k runs/raw .*": r"\g<0> && sed -i '121,$d' runs/raw/train.??",
    # Inputs of the reader.
    r"\bRAW\b|runs/part\b": "small",
    r"^specdec-make-pair (VERIFIER SOURCES|(opus-mt-en-de) text\.en) OUT.*": (
        r"specdec-make-pair VERIFIER small/train.en runs/made-\2 --updates 4 --cpu"
    ),
    r"make-pair VERIFIER": "make-pair checkpoints/multi30k.en-de/verifier.pt",
    r" VERIFIER\b": " runs/verifier/checkpoint_last.pt",
    r"\bDICT_DIR\b": "runs/m30k/bin",
    r" CODES\b": " runs/m30k/codes",
    r"(?<=^specdec-evaluate )(.*) OUT\b": r"\1 runs/compared",
    r"\bOUT\b": "small/out",
    r"\bBIN\b": "small/out/bin",
    r"\bDATA_DIR\b": PAIR,
    r"(?<![\w/])(drafter|verifier)\.pt": rf"{PAIR}/\1.pt",
    r"\.\.\. (?=--trace)": f"{PAIR} --input-path small/test.en ",
    r"\bcorpus/": "small/corpus/",
    r"\bsegmented\.en": "small/out/bpe/test.en",
    r"\btalk\.en": "small/test.en",
    r"\byour-text\.en": "small/train.en",
    r"\bruns/(wmt|raw)/(?=(valid|test)\.)": "small/",
    r"\b(runs/wmt/newstest2016\.drawn|drawn2016)\.en": "small/valid.en",
    r"\b(runs/wmt/newstest2014\.drawn|drawn2014|runs/multi30k\.drawn|text)\.en": "small/test.en",
    r"\bmemory/": "small/memory/",
    r"\b(opus-mt-en-de|nllb-200-distilled-600M)\b": "small/m2m",
    r"-s eng_Latn -t deu_Latn": "-s en -t de",
    # A folder for each way of training.
    r"(?<=^fairseq-train )(.*)SAVE_DIR": r"\1runs/by-hand",
    r"(?<=PWD/)SAVE_DIR": "runs/hydra",
    # A CPU, few rounds and updates, tiny models.
    r"--rounds \d": "--rounds 1",
    r" (32000|12000)$": " 200",
    r"--hours 4": "--updates 4 --cpu",
    r"--workers 8": "--workers 1",
    r" --(fp16|autocast bfloat16|verifier-feature-layers 1,2|max-update \d+)": "",
    r"--num-update-checkpoints 10": "--num-update-checkpoints 2",
    r"(?<=train\.en )1[13]6000\b": "60",
    r"--pairs 50000 --numbers 40000": "--pairs 100 --numbers 100",
    r"--draft-vocabulary 8000": "--draft-vocabulary 2",
    r"--recipe wmt14_\w+": r"\g<0> --no-fp16",
    r"--recipe (wmt14_block_causal|wmt_cpu_drafter)": r"\g<0> --verifier-embed-dim 32",
    r"^scripts/train_drafter\.sh (?!.*--recipe).*": r"\g<0> --verifier-embed-dim 32",
    r"^(scripts/train_(verifier|drafter)\.sh|specdec-train) .*": rf"\g<0> {TINY}",
    r"^scripts/train_head\.sh .*": rf"\g<0> {TINY_TRAINING}",
    r"^fairseq-train small/out/bin .*": rf"\g<0> {AS_WIDE} {TINY_TRAINING}",
    r"^fairseq-hydra-train .*": rf"\g<0> {HYDRA_SMALL}",
    r"^specdec-train .*": r"\g<0> --no-fp16",
    r"^scripts/gpu_check\.py .*": (
        r"\g<0> --device cpu --small --lines 1 --batch 1 --precisions float32 --exact float64"
    ),
    r"^scripts/(distill\.sh|inference\.py) .*": r"\g<0> --cpu --max-len-b 20",
    r"^runs/packed/scripts/train_on_gpu\.py .*": rf"\g<0> {GPU_SMALL}",
}
"""Replacements in every shell command, by pattern, in this order."""
INDENTED = r"(?:^    \S.*\n(?:(?:    .*)?\n)*)"
FENCED = r"(?:^```bash\n(?:.*\n)*?```$)"


class Command(NamedTuple):
    """A command of a page, and how it is run."""

    written: str
    run: str


def is_whole(lines: str) -> bool:
    """Return whether bash can read these lines as commands: a loop ends with its ``done``."""
    return subprocess.run(["bash", "-nc", lines], capture_output=True, check=False).returncode == 0


def shell_commands(block: str) -> list[str]:
    """Return the commands of a block: a line each, or a whole loop."""
    found = []
    lines = ""
    for line in re.sub(r" *\\\n\s*", " ", block).splitlines():
        lines += f"{line}\n"
        # A placeholder such as <this repository> is no command of bash.
        if lines.strip() and is_whole(re.sub(r"<[a-z ]+>", "", lines)):
            found.append(lines.strip())
            lines = ""
    if lines.strip():
        raise ValueError(f"no end of this command: {lines}")
    return found


def with_small_inputs(command: str) -> str:
    """Return a shell command with all replacements."""
    for pattern, small in SMALL.items():
        command = re.sub(pattern, small, command)
    return command


def page_commands(text: str) -> list[Command]:
    """Return the shell commands and the Python programs of a page's blocks of code."""
    found = []
    for match in re.finditer(f"{INDENTED}|{FENCED}", text, re.MULTILINE):
        block = re.sub(r"^(    |```.*\n?)", "", match[0], flags=re.MULTILINE).rstrip()
        if block.startswith("from "):
            found.append(Command(block, f"python3 - <<'END'\n{block}\nEND"))
        else:
            found += [Command(line, with_small_inputs(line)) for line in shell_commands(block)]
    return found


def write_lines(path: Path, lines: list[str]) -> None:
    """Write a text, and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


def write_inputs(small: Path) -> None:
    """Write what the commands read: texts, a mirror of downloads and sacreBLEU's test sets."""
    subtitle = ["1", "00:00:01,000 --> 00:00:02,500", "A man is reading.", ""]
    write_lines(small / "test.en.srt", subtitle)
    for language, side in (("en", "src"), ("de", "ref")):
        captions = Path("data", f"captions.{language}")
        lines = captions.read_text("utf-8").splitlines()
        numbered = [f"{number} {line}" for number in range(1, 4) for line in lines]
        write_lines(small / f"train.{language}", numbered)
        for split in ("valid", "test"):
            write_lines(small / f"{split}.{language}", lines[:4])
        for name in ("wmt13/wmt13", "wmt14/full/wmt14_full"):
            write_lines(small / f"sacrebleu/{name}.en-de.{side}", lines[:4])
            for other in ("docid", "genre", "origlang"):
                write_lines(small / f"sacrebleu/{name}.en-de.{other}", lines[:4])
        (small / "mirror").mkdir(exist_ok=True)
        for name, count in (("train", 29000), ("val", 1014), ("test_2016_flickr", 1000)):
            many = (f"{number} {lines[number % 40]}\n" for number in range(count))
            packed = gzip.compress("".join(many).encode(), compresslevel=1)
            (small / f"mirror/{name}.{language}.gz").write_bytes(packed)
    for name in ("a", "b"):
        write_lines(small / f"corpus/{name}.en", [f"A dog {name}.", "A man sings."])
        write_lines(small / f"memory/{name}.en", ["Ein Hund.", "Ein Mann singt."])
    export = f"specdec-export {PAIR}/verifier.pt {small}/m2m --to transformers"
    subprocess.run(export, shell=True, check=True, capture_output=True)
    for archive, name in (
        ("training-parallel-europarl-v7", "europarl-v7"),
        ("training-parallel-commoncrawl", "commoncrawl"),
        ("training-parallel-nc-v9", "news-commentary-v9"),
    ):
        with tarfile.open(small / f"mirror/{archive}.tgz", "w:gz") as packed_files:
            for language in ("en", "de"):
                text = (small / f"train.{language}").read_bytes()
                member = tarfile.TarInfo(f"training/{name}.de-en.{language}")
                member.size = len(text)
                packed_files.addfile(member, io.BytesIO(text))
    prepare = f"scripts/prepare_data.sh {small} {small}/out en de --codes {PAIR}/codes"
    dictionaries = f"--srcdict {PAIR}/dict.en.txt --tgtdict {PAIR}/dict.de.txt"
    subprocess.run(f"{prepare} {dictionaries}", shell=True, check=True, capture_output=True)


def run_page(page: str) -> bool:
    """Run a page's commands until the first that fails; return whether all passed."""
    variables = ""
    environment = {**os.environ, "PYTHONUTF8": "1"}
    for command in page_commands(Path(page).read_text("utf-8")):
        if re.fullmatch(r"\w+=\S+", command.run):
            variables += f"{command.run}\n"
        begin = time.perf_counter()
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", variables + command.run],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            check=False,
        )
        seconds = time.perf_counter() - begin
        print(f"{page}: {seconds:.0f} s: {command.run}", flush=True)
        output = done.stdout.decode("utf-8", "replace")
        if command.run.startswith("scripts/ref.sh"):
            print(output, end="", flush=True)
        if done.returncode:
            print(f"{output}\n{page}: failed: {command.run}", file=sys.stderr)
            return False
    return True


def main() -> int:
    """Run the commands of all pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="+", metavar="PAGE")
    pages = parser.parse_args().pages
    small = Path("small")
    if not small.exists():
        unfinished = Path("small.part")
        shutil.rmtree(unfinished, ignore_errors=True)
        write_inputs(unfinished)
        unfinished.rename(small)
    passed = [run_page(page) for page in pages]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
