#!/usr/bin/env python3
"""How often strict output differs from stock beam 1, and how close the call was where it does.

    scripts/exactness.py MODEL_DIR --input-path FILE [--dtype float64] [--batch 1 32]
        [--controller constant cost-aware]

MODEL_DIR holds verifier.pt, drafter.pt, dictionaries and codes. FILE is ordinary text. For every
line that differs, the gap is the difference of the verifier's float64 log-probabilities of the two
tokens at the first difference. Exit status 1 if any line differs in float64.
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from tqdm import tqdm

import specdec_plugins  # noqa: F401
from specdec_plugins.checkpoints import CheckpointError
from specdec_plugins.cli.terminal import prepare_terminal
from specdec_plugins.decoding.controllers import NAMES, ControllerOptions
from specdec_plugins.inference import (
    InferenceError,
    Settings,
    Translator,
    load_translator,
)


def main() -> int:
    prepare_terminal("exactness.py")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--input-path", type=Path, required=True)
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--controller", choices=NAMES, nargs="+", default=["constant"])
    args = parser.parse_args()
    try:
        lines = args.input_path.read_text(encoding="utf-8").splitlines()
        expected = ids(load(args, "fairseq", 1), lines, "beam 1")
        judge = load(args, "AR", 1, "float64")
        differing = 0
        for controller, batch in product(args.controller, args.batch):
            title = f"{controller}, batch {batch}"
            found = ids(load(args, "specdec", batch, controller=controller), lines, title)
            pairs = enumerate(zip(expected, found, strict=True))
            gaps = [gap(judge, lines[i], a, b) for i, (a, b) in pairs if a != b]
            worst = f", largest gap {max(gaps):.2g} nats" if gaps else ""
            print(
                f"{args.dtype}, {title}: {len(gaps)} of {len(lines)} lines differ{worst}",
                flush=True,
            )
            differing += len(gaps)
    except (CheckpointError, InferenceError, OSError, ValueError) as error:
        print(f"exactness.py: {error}", file=sys.stderr)
        return 2
    return int(differing > 0 and args.dtype == "float64")


def load(
    args: Any,
    strategy: str,
    batch: int,
    dtype: str | None = None,
    controller: str = "constant",
) -> Translator:
    return load_translator(
        Settings(
            data=str(args.model),
            path=str(args.model / "drafter.pt"),
            ar_path=str(args.model / "verifier.pt"),
            strategy=strategy,
            batch=batch,
            beam=1,
            dtype=dtype or args.dtype,
            tokenizer="moses",
            bpe="subword_nmt",
            keep_bpe=True,
            controller=ControllerOptions(controller),
        )
    )


def ids(translator: Translator, lines: list[str], name: str) -> list[list[str]]:
    """The tokens of every translation."""
    translations = translator.translate(lines)
    return [t.text.split() for t in tqdm(translations, total=len(lines), desc=name, leave=False)]


def gap(judge: Translator, line: str, a: list[str], b: list[str]) -> float:
    """By how much the verifier prefers one of two outputs at their first difference."""
    generator: Any = judge.generator
    dictionary = judge.codec.target
    source = judge.codec.source.encode_line(" ".join(encode(judge, line)), add_if_not_exist=False)
    first = next(i for i, (x, y) in enumerate(zip([*a, ""], [*b, ""])) if x != y)
    prefix = [dictionary.eos()] + [dictionary.index(token) for token in a[:first]]
    options = [dictionary.index(t[first]) if first < len(t) else dictionary.eos() for t in (a, b)]
    with torch.no_grad():
        logits, _ = generator.model(
            source.long()[None], torch.tensor([len(source)]), torch.tensor([prefix])
        )
    scores = logits[0, -1].log_softmax(-1)
    return abs(float(scores[options[0]] - scores[options[1]]))


def encode(judge: Translator, line: str) -> list[str]:
    return str(judge.codec.bpe.encode(judge.codec.tokenizer.encode(line))).split()


if __name__ == "__main__":
    sys.exit(main())
