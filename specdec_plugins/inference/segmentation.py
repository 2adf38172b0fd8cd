"""fairseq's tokenizer and BPE of a run, and the files of theirs that lie in a model's folder."""

from __future__ import annotations

import os
from argparse import Namespace
from dataclasses import fields
from typing import TYPE_CHECKING

from fairseq.data import encoders
from fairseq.registry import REGISTRIES
from omegaconf import MISSING

from specdec_plugins.checkpoints.archive import one_line
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.inference.text import Segmenter

if TYPE_CHECKING:
    from specdec_plugins.inference.settings import Settings

IN_FOLDER = {
    "bpe_codes": ("codes", "code", "bpecodes"),
    "sentencepiece_model": ("sentencepiece.bpe.model", "sentencepiece.model", "spm.model"),
}
"""What the file of an option of fairseq's may be called: by us, by fairseq's hub, by others."""


def files_in_folder(folder: str) -> dict[str, str]:
    """The paths of codes and models of segmentation in a folder, by fairseq's option."""
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


def build_segmenters(
    settings: Settings, languages: tuple[str, str]
) -> tuple[Segmenter | None, Segmenter | None]:
    """fairseq's tokenizer and BPE, or None each.

    Args:
        languages: source and target.

    Raises:
        InferenceError: one lacks its file or a package, or cannot be set up; names its flag.
    """
    given = {n: value for n, value in settings.encoder_options.items() if value != MISSING}
    options = Namespace(**{**files_in_folder(settings.data), **given})
    options.tokenizer, options.bpe = settings.tokenizer, settings.bpe
    options.source_lang, options.target_lang = languages
    built = []
    for flag, build in (("tokenizer", encoders.build_tokenizer), ("bpe", encoders.build_bpe)):
        _check_files_named(flag, options, settings.data)
        try:
            built.append(build(options))
        # Each has its own ways to fail: missing files, packages, options. The BPE reader exits.
        except (Exception, SystemExit) as error:
            reason, name = one_line(error), getattr(options, flag)
            raise InferenceError(f"--{flag} {name}: cannot be set up ({reason})") from error
    return built[0], built[1]


def _check_files_named(kind: str, options: Namespace, folder: str) -> None:
    """Refuse a tokenizer or BPE whose file is neither given nor found.

    Raises:
        InferenceError: names its flag.
    """
    name = getattr(options, kind)
    form = REGISTRIES[kind]["dataclass_registry"].get(name)
    for field in fields(form) if form else ():
        if field.default == MISSING and getattr(options, field.name, None) is None:
            flag = f"--{field.name.replace('_', '-')}"
            names = IN_FOLDER.get(field.name)
            beside = f", or put it into {folder} as {names[0]}" if names else ""
            raise InferenceError(f"--{kind} {name}: needs {flag}; give its file{beside}")
