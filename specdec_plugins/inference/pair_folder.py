"""The folder of a pair: a verifier, a drafter, their dictionaries and their segmentation."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.output import JsonObject, write_whole
from specdec_plugins.verifiers.folder import is_folder

VERIFIER = "verifier.pt"
DRAFTER = "drafter.pt"
#: Tokenizer, BPE and their options by fairseq's names; files stand beside it.
SEGMENTATION = "segmentation.json"
ENCODERS = ("tokenizer", "bpe")
#: The BPE of a folder of transformers: its own SentencePiece models.
TRANSFORMERS = "transformers"
#: File names for options of fairseq: ours, those of fairseq's hub, and others.
IN_FOLDER: dict[str, tuple[str, ...]] = {
    "bpe_codes": ("codes", "code", "bpecodes"),
    "sentencepiece_model": ("sentencepiece.bpe.model", "sentencepiece.model", "spm.model"),
}
#: Options of fairseq that name files.
FILES = (
    *(*IN_FOLDER, "sentencepiece_model_path", "bpe_merges", "bpe_vocab", "bpe_vocab_file"),
    *("gpt2_encoder_json", "gpt2_vocab_bpe"),
)


def files_in_folder(folder: str) -> dict[str, str]:
    """Return the paths of codes and models of segmentation in a folder, by fairseq's option."""
    paths: dict[str, str] = {}
    for option, names in IN_FOLDER.items():
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                paths.setdefault(option, path)
    models = [path.name for path in Path(folder).glob("*.model") if path.is_file()]
    if len(models) == 1:
        paths.setdefault("sentencepiece_model", os.path.join(folder, models[0]))
    return paths


def copy_segmentation(folder: Path, target: Path) -> list[Path]:
    """Copy the description and the files by which a folder's text is segmented; return the
    copies."""
    options = segmentation_beside(folder).get("encoder_options", {})
    values = [SEGMENTATION, *files_in_folder(str(folder)).values(), *options.values()]
    copies = []
    for name in {Path(str(value)).name for value in values}:
        if (folder / name).is_file():
            write_whole(target / name, [(folder / name).read_bytes()])
            copies.append(target / name)
    return copies


def folder_of_pair(folder: Path) -> Path:
    """Return the folder of a pair, which specdec-make-pair makes inside of OUT."""
    inner = folder / "pair"
    outside = (inner / VERIFIER).is_file() and not (folder / VERIFIER).is_file()
    return inner if outside else folder


def segmentation_beside(folder: Path) -> JsonObject:
    """Return tokenizer, BPE and their options for the files in a folder; empty without any.

    SentencePiece splits at spaces itself; codes are of words that Moses tokenises.
    """
    file = folder / SEGMENTATION
    files = files_in_folder(str(folder))
    if file.is_file():
        return _read(file)
    if "bpe_codes" in files:
        return {"tokenizer": "moses", "bpe": "subword_nmt"}
    if is_folder(folder):
        return {"bpe": TRANSFORMERS}
    return {"tokenizer": "space", "bpe": "sentencepiece"} if files else {}


def pair_settings(model: Path, dictionaries: Path | None = None) -> JsonObject:
    """Return the settings of a run that a model decides: its files, tokenizer and BPE.

    Args:
        model: the folder of a pair or of transformers, or a verifier's checkpoint.
        dictionaries: see :func:`verifier_settings`.
    """
    settings = verifier_settings(model, dictionaries)
    drafter = folder_of_pair(model) / DRAFTER
    alone = drafter.with_name(VERIFIER).is_file() and not drafter.exists()
    if model.is_file() or is_folder(model) or alone:
        return settings
    return {**settings, "path": str(drafter), "drafter_named": False}


def verifier_settings(verifier: Path, dictionaries: Path | None) -> JsonObject:
    """Return the settings of a run by a verifier alone, segmented by the files beside its
    dictionaries, or not at all.

    Args:
        verifier: a checkpoint, or the folder of a pair or of transformers.
        dictionaries: their folder, if it is not that of the checkpoint.
    """
    path = verifier
    if verifier.is_dir() and not is_folder(verifier):
        path = folder_of_pair(verifier) / VERIFIER
    data = dictionaries or (path if path.is_dir() else path.parent)
    return {"data": str(data), "ar_path": str(path), **segmentation_beside(data)}


def _read(file: Path) -> JsonObject:
    try:
        values = msgspec.json.decode(file.read_bytes(), type=dict[str, str])
    except (ValueError, RecursionError) as error:
        raise InferenceError(
            f'{file}: must hold texts by name, such as {{"tokenizer": "moses"}} ({error})'
        ) from error
    options = {}
    for key, value in values.items():
        beside = file.parent / value
        # It may come from a stranger: no file elsewhere is read, no device, no address.
        if os.sep in value or (key in FILES and not beside.is_file()):
            raise InferenceError(f"{file}: {key} {value!a}: is not beside it; put the file there")
        if key not in ENCODERS:
            options[key] = str(beside) if beside.is_file() else value
    return {key: values.get(key) for key in ENCODERS} | {"encoder_options": options}
