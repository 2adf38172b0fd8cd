"""fairseq's tokenizer and BPE of a run."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import fields

from fairseq.data import encoders
from fairseq.registry import REGISTRIES
from omegaconf import MISSING

from specdec_plugins.checkpoints.archive import one_line
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.inference.pair_folder import IN_FOLDER, files_in_folder
from specdec_plugins.inference.settings import Settings
from specdec_plugins.inference.text import Segmenters


def build_segmenters(settings: Settings, languages: tuple[str, str]) -> Segmenters:
    """Set up fairseq's tokenizer and BPE for source and target languages."""
    known = {n: value for n, value in settings.encoder_options.items() if value != MISSING}
    options = Namespace(**{**files_in_folder(settings.data), **known})
    options.tokenizer, options.bpe = settings.tokenizer, settings.bpe
    options.source_lang, options.target_lang = languages
    built = []
    for flag, build in (("tokenizer", encoders.build_tokenizer), ("bpe", encoders.build_bpe)):
        _check_files(flag, options)
        try:
            built.append(build(options))
        # Each fails differently: missing files, packages, options. The BPE reader exits.
        except (Exception, SystemExit) as error:
            reason, name = one_line(error), getattr(options, flag)
            raise InferenceError(f"--{flag} {name}: cannot be set up ({reason})") from error
    tokenizer, bpe = built
    markers = settings.post_process or ("subword_nmt" if bpe is None else None)
    return Segmenters(tokenizer, bpe, markers, settings.keep_bpe)


def _check_files(kind: str, options: Namespace) -> None:
    """Refuse a tokenizer or BPE whose file is missing, or would be fetched."""
    name = getattr(options, kind)
    form = REGISTRIES[kind]["dataclass_registry"].get(name)
    for field in fields(form) if form else ():
        if field.default == MISSING and getattr(options, field.name, None) is None:
            file = IN_FOLDER.get(field.name, ("its file",))[0]
            flag = f"--{field.name.replace('_', '-')}"
            raise InferenceError(f"--{kind} {name}: give {flag}, or {file} beside the dictionaries")
        if "://" in str(getattr(options, field.name, field.default)):
            raise InferenceError(f"--{kind} {name}: {field.name} is an address; give a file of it")
