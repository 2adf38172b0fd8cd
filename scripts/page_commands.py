#!/usr/bin/env python3
"""Run the shell commands of documentation pages, with small inputs in place of big ones.

    scripts/page_commands.py README.md docs/wmt.md

Run in a copy of the clone, with the package's commands on the path. Every command is run in the
page's order and printed with its seconds; the first that fails ends the page, with status 1.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

BEGINS = r"(specdec-|scripts/|\./scripts/|fairseq-|cat |cp |head |mkdir |for |W=)"
COMMAND = re.compile(rf"^    ({BEGINS}.*)$", re.MULTILINE)
MODEL = " ".join(
    f"--{side}-{name} {size}"
    for side in ("encoder", "decoder")
    for name, size in {
        "layers": 1,
        "embed-dim": 32,
        "ffn-embed-dim": 32,
        "attention-heads": 2,
    }.items()
)
TRAINING = (
    f"--cpu {MODEL} --max-update 4 --update-freq 1 --save-interval-updates 2 --max-tokens 400"
)
#: Replacements in every command, in this order.
SMALL = {
    # Examples of usage, not commands: with names in capitals, or parts left out.
    r"^.*(\.\.\. |<).*$": "",
    r"^(\./)?scripts/demo.sh.*$": "",
    # Downloads come from a text that is here.
    r"scripts/get_data.py wmt14 (\S+)": r"mkdir -p runs && cp -r small \1",
    r"\bRAW\b": "small",
    r"\bOUT\b": "runs/out",
    r"\bBIN\b": "runs/out/bin",
    r"\bDATA_DIR\b": "$W",
    r"\b(32000|12000)$": "200",
    r"(your-text|talk|segmented)\.en": r"small/train.en",
    r"--hours 4": "--updates 4 --cpu",
    r"--workers 8|--shard-lines 20000|--fp16|--autocast bfloat16|--verifier-feature-layers 1,2": "",
    r"--num-update-checkpoints 10": "--num-update-checkpoints 2",
    r"--max-update \d+": "",
    r"(--recipe wmt14_block_causal)": r"\1 --verifier-embed-dim 32",
    r"(--recipe wmt14_\w+)": r"\1 --no-fp16",
    r"(scripts/train_(?:verifier|drafter)\.sh .*)": rf"\1 {TRAINING}",
    r"(scripts/(?:distill\.sh|inference\.py) .*)": r"\1 --cpu --max-len-b 20",
}


def commands(page: Path) -> list[str]:
    """Return a page's commands, each in one line, with small inputs."""
    text = re.sub(r" *\\\n\s*", " ", page.read_text("utf-8"))
    found = []
    for match in COMMAND.finditer(text):
        command = match[1]
        for pattern, small in SMALL.items():
            command = re.sub(pattern, small, command)
        found += [command.strip()] * bool(command.strip())
    return found


def main() -> int:
    """Run the commands of all pages."""
    failed = 0
    for page in map(Path, sys.argv[1:]):
        for command in commands(page):
            begin = time.perf_counter()
            done = subprocess.run(
                ["bash", "-c", command], capture_output=True, text=True, check=False
            )
            print(f"{page}: {time.perf_counter() - begin:.0f} s: {command}", flush=True)
            if done.returncode:
                print(f"{done.stdout}{done.stderr}\n{page}: failed", file=sys.stderr)
                failed = 1
                break
    return failed


if __name__ == "__main__":
    sys.exit(main())
