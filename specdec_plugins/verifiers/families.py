"""The families that are read."""

from __future__ import annotations

from pathlib import Path

from specdec_plugins.checkpoints.archive import shown
from specdec_plugins.files.errors import CheckpointError
from specdec_plugins.files.output import JsonObject, Location
from specdec_plugins.verifiers.bart import Bart
from specdec_plugins.verifiers.family import Family
from specdec_plugins.verifiers.folder import CONFIG, is_folder, read_json
from specdec_plugins.verifiers.m2m import M2M
from specdec_plugins.verifiers.marian import Marian
from specdec_plugins.verifiers.mbart import MBart

FAMILIES: dict[str, type[Family]] = {
    family.model_type: family for family in (Marian, M2M, Bart, MBart)
}


def limits_of(path: Location | None) -> JsonObject:
    """Return the limits, by our names, that a folder of transformers brings; else none."""
    return family_of(path).generation.limits() if path and is_folder(path) else {}


def search_of(path: Location | None) -> JsonObject:
    """Return the options, by fairseq's names, that a folder of transformers brings to a beam."""
    if path and is_folder(path):
        return {"no_repeat_ngram_size": family_of(path).generation.no_repeat_ngram_size}
    return {}


def family_of(folder: Location) -> Family:
    """Return the family of a folder as transformers saves a model.

    Raises:
        CheckpointError: a model that is not supported, or a file that cannot be read.
    """
    path = Path(folder)
    name = str(read_json(path / CONFIG, dict[str, object]).get("model_type"))
    if name not in FAMILIES:
        raise CheckpointError(
            f"{path / CONFIG}: its model_type is {shown(name)}; supported are {', '.join(FAMILIES)}"
        )
    return FAMILIES[name](path)
