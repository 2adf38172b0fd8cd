"""The files of a folder as transformers saves a model. It may come from a stranger: nothing in it
is run, and no file outside of it is read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from torch import Tensor

from specdec_plugins.checkpoints.archive import check_weights, load_archive, one_line
from specdec_plugins.files.errors import CheckpointError
from specdec_plugins.files.output import Location, file_digest

CONFIG = "config.json"
#: Files of weights, in the order in which transformers looks for them.
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
#: Ends of the names of all files that are read.
READ = (".json", ".safetensors", ".bin", ".spm", ".model", "merges.txt")
AGAIN = "copy or download the folder again"

T = TypeVar("T")
ShardName = Annotated[str, msgspec.Meta(pattern=r"\A[\w.-]+\.(safetensors|bin)\Z")]


class Index(msgspec.Struct):
    """The list of a model's shards."""

    #: The shard that holds a weight, by the weight's name.
    weight_map: dict[str, ShardName]


def is_folder(path: Location) -> bool:
    """Return whether a path is a folder as transformers saves a model."""
    return os.path.isfile(os.path.join(path, CONFIG))


def read_json(path: Path, kind: type[T]) -> T:
    """Return the content of a JSON file as a type; fields that the type lacks are left out.

    Raises:
        CheckpointError: the file is missing, or holds something else.
    """
    with reading(path):
        return msgspec.json.decode(path.read_bytes(), type=kind)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Say in one line why a file could not be read: a damaged file can raise anything at all."""
    try:
        yield
    except Exception as error:
        remedy = "pip install 'specdec-plugins[hf]'" if isinstance(error, ImportError) else AGAIN
        reason = getattr(error, "strerror", None) or ascii(one_line(error))[1:-1][:200]
        raise CheckpointError(f"{path}: cannot be read ({reason}); {remedy}") from error


def read_optional(path: Path, kind: type[T]) -> T:
    """Return the content of a JSON file, or the type's defaults if there is no such file."""
    return read_json(path, kind) if path.is_file() else kind()


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return all weights of a folder, each in its own precision, by transformers' names."""
    for name in WEIGHTS:
        if (folder / name).is_file():
            return _read_tensors(folder / name)
        index = folder / f"{name}.index.json"
        if index.is_file():
            weights: dict[str, Tensor] = {}
            for shard in sorted(set(read_json(index, Index).weight_map.values())):
                weights |= _read_tensors(folder / shard)
            return weights
    raise CheckpointError(f"{folder}: has neither {WEIGHTS[0]} nor {WEIGHTS[1]}; {AGAIN}")


def _read_tensors(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".bin":
        tensors: Any = load_archive(path)
    else:
        with reading(path):
            from safetensors.torch import load_file

            tensors = load_file(path)
    check_weights(str(path), tensors)
    return tensors


def model_digest(path: Location) -> str:
    """Return the SHA-256 of a checkpoint, or of the files of a folder of transformers."""
    if not os.path.isdir(path):
        return file_digest(path)
    files = sorted(file for file in Path(path).iterdir() if file.name.endswith(READ))
    digests = "".join(f"{file.name} {file_digest(file)}\n" for file in files)
    return hashlib.sha256(digests.encode("utf-8", "surrogatepass")).hexdigest()
