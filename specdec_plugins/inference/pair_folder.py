"""The folder of a pair: a verifier, a drafter, their dictionaries and their segmentation."""

from __future__ import annotations

import json
import os
from pathlib import Path

from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.json_object import JsonObject

VERIFIER, DRAFTER = "verifier.pt", "drafter.pt"
SEGMENTATION = "segmentation.json"
"""Says the tokenizer and the BPE, and their options by fairseq's names; files stand beside it."""
ENCODERS = ("tokenizer", "bpe")
IN_FOLDER = {
    "bpe_codes": ("codes", "code", "bpecodes"),
    "sentencepiece_model": ("sentencepiece.bpe.model", "sentencepiece.model", "spm.model"),
}
"""What the file of an option of fairseq's may be called: by us, by fairseq's hub, by others."""


def files_in_folder(folder: str) -> dict[str, str]:
    """Return the paths of codes and models of segmentation in a folder, by fairseq's option."""
    found = {}
    for option, names in IN_FOLDER.items():
        paths = [os.path.join(folder, name) for name in names]
        path = next((path for path in paths if os.path.isfile(path)), None)
        if path is not None:
            found[option] = path
    return found


def segmentation_of(folder: str) -> dict[str, str]:
    """``tokenizer`` and ``bpe`` of ordinary text for the folder of a pair, by what lies in it:
    SentencePiece splits at spaces itself, codes are of words that Moses tokenises."""
    found = files_in_folder(folder)
    if "sentencepiece_model" in found and "bpe_codes" not in found:
        return {"tokenizer": "space", "bpe": "sentencepiece"}
    return {"tokenizer": "moses", "bpe": "subword_nmt"}


def pair_settings(folder: Path) -> JsonObject:
    """Return the settings of a run that a pair's folder decides: models, tokenizer and BPE.

    Without ``segmentation.json`` the files of codes or models in the folder say what it is for.

    Raises:
        InferenceError: ``segmentation.json`` cannot be read, or says something else.
    """
    return {
        "data": str(folder),
        "ar_path": str(folder / VERIFIER),
        "path": str(folder / DRAFTER),
        **_segmentation(folder),
    }


def verifier_settings(verifier: Path, dictionaries: Path | None) -> JsonObject:
    """Return the settings of a run by a verifier alone, segmented as what lies beside its
    dictionaries says, or not at all.

    Args:
        verifier: a checkpoint, or the folder of a pair.
        dictionaries: their folder, if it is not that of the checkpoint.

    Raises:
        InferenceError: there is no such verifier, there are no dictionaries, or
            ``segmentation.json`` cannot be read or says something else.
    """
    path = verifier / VERIFIER if verifier.is_dir() else verifier
    data = dictionaries or path.parent
    if not data.is_dir() and not dictionaries:
        raise InferenceError(f"{path}: no such file; check the path")
    if path.is_file() and not any(data.glob("dict.*.txt")):
        raise InferenceError(
            f"{data}: holds no dict.*.txt; name the folder of the verifier's dictionaries by "
            "--dictionaries"
        )
    said = (data / SEGMENTATION).is_file() or files_in_folder(str(data))
    found = pair_settings(data) if said else {}
    return {**found, "data": str(data), "ar_path": str(path), "path": None, "strategy": "AR"}


def _segmentation(folder: Path) -> JsonObject:
    file = folder / SEGMENTATION
    return _read(file) if file.is_file() else dict(segmentation_of(str(folder)))


def _read(file: Path) -> JsonObject:
    try:
        said = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InferenceError(f"{file}: cannot be read ({error}); write it anew") from error
    if not isinstance(said, dict) or not all(isinstance(said[key], str) for key in said):
        raise InferenceError(f"{file}: must hold texts by name, such as {{'tokenizer': 'moses'}}")
    beside = {key: os.path.join(file.parent, value) for key, value in said.items()}
    options = {
        key: beside[key] if os.path.isfile(beside[key]) else value
        for key, value in said.items()
        if key not in ENCODERS
    }
    return {key: said.get(key) for key in ENCODERS} | {"encoder_options": options}
