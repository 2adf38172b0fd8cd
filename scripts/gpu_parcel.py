#!/usr/bin/env python3
"""Send a pair and a text to a machine with a GPU in little space, and take trained models back.

    scripts/gpu_parcel.py pack PAIR PACKED --text train.en train.de --more symbols.en symbols.de
    scripts/gpu_parcel.py join OUT PAIR NEW

pack makes a folder that trains by itself: PACKED/scripts/train_on_gpu.py, the package, the pair,
its matrices rounded to 8 bits, and segmented sentences as token numbers, the best of --text first.
join makes a pair of the parts that a training left in OUT, and of the rest of the pair with which
it began. A training that was stopped while it stored a model has left the one before.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import lzma
import shutil
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import installed
import numpy as np
import torch
from fairseq.data import Dictionary
from numpy.typing import NDArray
from texts import aligned
from torch import Tensor, nn

import specdec_plugins
from specdec_plugins.checkpoints.archive import load_archive
from specdec_plugins.checkpoints.loading import save_state
from specdec_plugins.files.command import Parser, command, put
from specdec_plugins.files.errors import InferenceError

EOS = 2
"""The end of a sentence in every dictionary of fairseq."""
MODELS = ("verifier", "drafter")
TEXTS = ("text", "more")
TREE = ("LICENSE", "README.md", "data", "pyproject.toml", "scripts", "setup.py")
"""The part of this repository that, with the package, trains and can be installed."""
PART = 16_750_000
"""Bytes of a part of a trained model, under 16 MiB: the shipped WMT verifier is three parts."""


def pack(args: argparse.Namespace) -> None:
    """Write the scripts, the package, the pair in 8 bits, and the texts as token numbers."""
    if args.packed.exists():
        raise InferenceError(f"{args.packed}: is there already; name a new folder")
    texts = {name: token_numbers(args.pair, getattr(args, name)) for name in TEXTS}
    states = {name: load_archive(args.pair / f"{name}.pt") for name in MODELS}
    shutil.copytree(installed.ROOT, args.packed, ignore=left_out)
    package = Path(specdec_plugins.__file__).parent
    shutil.copytree(package, args.packed / package.name, ignore=left_out)
    pair = args.packed / "pair"
    shutil.copytree(args.pair, pair, ignore=shutil.ignore_patterns("*.pt", "example.*"))
    for name, state in states.items():
        state["model"] = {key: rounded(tensor) for key, tensor in state["model"].items()}
        write_compressed(pair / f"{name}.pt.xz", torch_bytes(state))
    for name, numbers in texts.items():
        write_compressed(args.packed / f"{name}.xz", numbers.tobytes())
    files = [path for path in args.packed.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files) / 2**20
    if size > args.limit:
        shutil.rmtree(args.packed)
        raise InferenceError(
            f"{args.packed}: {size:.1f} MiB is more than --limit {args.limit:g}; "
            "give fewer lines of --text"
        )
    put(f"{args.packed}: {size:.1f} MiB\n")


def left_out(folder: str, names: Sequence[str]) -> set[str]:
    """Return the names in a folder of this repository that do not travel."""
    if Path(folder) == installed.ROOT:
        return {*names} - {*TREE}
    return {"__pycache__"}


def token_numbers(pair: Path, files: Sequence[Path]) -> NDArray[np.uint16]:
    """Return the tokens of aligned texts: a source, EOS, its target, EOS, the next source, …"""
    paths = [pair / f"dict{path.suffix}.txt" for path in files]
    words = [Dictionary.load(str(path)) for path in paths]
    numbers = list[int]()
    for sides in zip(*aligned(*files), strict=True):
        for line, dictionary in zip(sides, words, strict=True):
            numbers += map(dictionary.index, line.split())
            numbers.append(EOS)
    return np.array(numbers, np.uint16)


def read_numbers(packed: Path, name: str) -> NDArray[np.uint16]:
    """Return the tokens of a packed text."""
    content = read_compressed(packed / f"{name}.xz")
    return np.frombuffer(content, np.uint16)


def rounded(tensor: Tensor) -> object:
    """Return a matrix in 8 bits with a scale for each row; other tensors as they are."""
    if tensor.dim() != 2 or not tensor.is_floating_point():
        return tensor
    matrix = tensor.float()
    highest = matrix.abs().amax(1, keepdim=True)
    scale = highest.clamp(min=1e-8) / 127
    integers = (matrix / scale).round().to(torch.int8)
    return integers, scale


def unpack(packed: Path, pair: Path) -> None:
    """Make a pair of a packed one. Its files are loaded whole: they must be your own."""
    shutil.copytree(packed / "pair", pair, ignore=shutil.ignore_patterns("*.xz"))
    for name in MODELS:
        content = read_compressed(packed / "pair" / f"{name}.pt.xz")
        state = torch.load(io.BytesIO(content), weights_only=False)
        for key, value in state["model"].items():
            if isinstance(value, tuple):
                matrix, scale = value
                state["model"][key] = (matrix.float() * scale).half()
        torch.save(state, pair / f"{name}.pt")


def store(folder: Path, name: str, model: nn.Module) -> None:
    """Write a model's weights, in float16, in parts that say their digest; then drop older ones.

    A stop at any moment leaves a whole model, since for a moment there are two: of the shipped WMT
    verifier, beside a drafter and the results, 8 files and 109 MB.
    """
    stored = dict[int, Tensor]()
    weights = dict[str, Tensor]()
    for key, tensor in model.state_dict().items():
        # Tables that are shared are stored once.
        address = tensor.data_ptr()
        if address not in stored:
            dtype = torch.float16 if tensor.is_floating_point() else tensor.dtype
            stored[address] = tensor.to("cpu", dtype)
        weights[key] = stored[address]
    content = torch_bytes(weights)
    digest = hashlib.sha256(content).hexdigest()
    older = list(folder.glob(f"{name}.*.*.*.part"))
    versions = [int(path.name.split(".")[1]) for path in older]
    # A number of its own: the same weights again must not overwrite the only whole model.
    version = 1 + max(versions, default=0)
    for number, start in enumerate(range(0, len(content), PART)):
        part = content[start : start + PART]
        (folder / f"{name}.{version}.{digest}.{number}.part").write_bytes(part)
    for path in older:
        path.unlink()


def newest(folder: Path, name: str) -> bytes:
    """Return the newest model that is whole."""
    models = defaultdict[tuple[int, str], dict[int, Path]](dict)
    for path in folder.glob(f"{name}.*.*.*.part"):
        _, version, digest, number, _ = path.name.split(".")
        models[int(version), digest][int(number)] = path
    for (_, digest), parts in sorted(models.items(), reverse=True):
        content = b"".join(parts[number].read_bytes() for number in sorted(parts))
        if hashlib.sha256(content).hexdigest() == digest:
            return content
    raise InferenceError(f"{folder}: no {name} is whole: parts are missing or damaged")


def join(args: argparse.Namespace) -> None:
    """Make a pair of stored parts, with the rest of the pair it began with."""
    if args.new.exists():
        raise InferenceError(f"{args.new}: is there already; name a new folder")
    states = {}
    for name in MODELS:
        states[name] = state = load_archive(args.pair / f"{name}.pt")
        content = newest(args.out, name)
        weights = torch.load(io.BytesIO(content), weights_only=True)
        if weights.keys() != state["model"].keys():
            raise InferenceError(f"{args.out}: {name} has other weights than {args.pair}")
        state["model"] = weights
        digest = hashlib.sha256(content).hexdigest()
        put(f"{name}: {len(content) / 2**20:.1f} MiB, sha256 {digest[:16]}\n")
    # A head is of the models that are replaced. The folder gets its name when it is whole.
    unfinished = args.new.with_name(f"{args.new.name}.part")
    shutil.rmtree(unfinished, ignore_errors=True)
    others = shutil.ignore_patterns(*(f"{name}.pt" for name in MODELS), "acceptance_head*")
    shutil.copytree(args.pair, unfinished, ignore=others)
    for name, state in states.items():
        save_state(state, unfinished / f"{name}.pt")
    unfinished.rename(args.new)


def write_compressed(path: Path, content: bytes) -> None:
    """Write a file of xz."""
    path.write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))


def read_compressed(path: Path) -> bytes:
    """Return the content of a file of xz."""
    return lzma.decompress(path.read_bytes())


def torch_bytes(state: object) -> bytes:
    """Return the bytes of torch's file."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


@command()
def main(argv: Sequence[str]) -> None:
    """Pack or join."""
    parser = Parser(__doc__)
    commands = parser.add_subparsers(
        required=True, metavar="pack|join", parser_class=argparse.ArgumentParser
    )
    packs = commands.add_parser("pack")
    packs.set_defaults(run=pack)
    packs.add_argument("pair", type=Path)
    packs.add_argument("packed", type=Path, help="folder to make")
    for name in TEXTS:
        packs.add_argument(f"--{name}", type=Path, nargs=2, required=True, metavar="FILE.LANG")
    packs.add_argument("--limit", type=float, default=60, help="MiB of the folder at most")
    joins = commands.add_parser("join")
    joins.set_defaults(run=join)
    joins.add_argument("out", type=Path, help="folder of the parts")
    joins.add_argument("pair", type=Path)
    joins.add_argument("new", type=Path, help="folder to make")
    args = parser.parse_args(argv)
    args.run(args)


if __name__ == "__main__":
    sys.exit(main())
