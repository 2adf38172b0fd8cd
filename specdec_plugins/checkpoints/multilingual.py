"""The languages of multilingual models, and the positions of their tokens.

fairseq trains such models by ``--task translation_multi_simple_epoch`` (M2M-100, NLLB). Its
functions name the tokens, add them to dictionaries and look them up.
"""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

import torch
from fairseq.data import Dictionary
from fairseq.data.multilingual.multilingual_data_manager import MultilingualDatasetManager
from fairseq.data.multilingual.multilingual_utils import (
    LangTokSpec,
    LangTokStyle,
    augment_dictionary,
)
from fairseq.tasks import FairseqTask
from fairseq.tasks.translation_multi_simple_epoch import TranslationMultiSimpleEpochTask
from torch import Tensor

from specdec_plugins.checkpoints.archive import shown
from specdec_plugins.files.errors import CheckpointError, ConfigError
from specdec_plugins.files.output import JsonObject

TASK = "translation_multi_simple_epoch"
KEY = "multilingual"
"""The key of the languages in the ``task_state`` of the plugin's checkpoints."""

NAME = re.compile(r"[^\s,]{1,64}")
SPEC = re.compile(r"(src|tgt)(\.\w{1,32})?")
TAGS = ("<MINED_DATA>", "<MMT_BT_DATA>", "<SMT_BT_DATA>")
"""The last entries of dictionaries of NLLB's branch of fairseq (``--add-data-source-prefix-tags``),
used in its training only."""
OF_BRANCH = ("add_ssl_task_tokens", "finetune_dict_specs")
"""Options of that branch that add other entries to dictionaries."""
MAX_NAMES = 1 << 17
"""The largest number of languages, or of their pairs."""


class Beginning(TypedDict):
    """The beginning of a batch's targets, as arguments of fairseq's generators."""

    prefix_tokens: Tensor | None
    bos_token: int | None


@dataclass(frozen=True)
class LanguageTokens:
    """The language tokens of a direction; a model of two languages has none."""

    source: int | None = None
    """The token of sources, in the source dictionary."""
    target: int | None = None
    """The token with which targets begin."""
    replace_eos: bool = False
    """True if the tokens replace the EOS that ends a source and begins a target; otherwise they
    come before the source, and after the EOS of the target."""

    @property
    def before_source(self) -> int:
        """The number of tokens added to a source."""
        return int(self.source is not None and not self.replace_eos)

    @property
    def forced(self) -> list[int]:
        """The first tokens of an output after EOS."""
        return [] if self.target is None or self.replace_eos else [self.target]

    @property
    def begin(self) -> int | None:
        """The token that replaces the EOS of targets; None: EOS."""
        return self.target if self.replace_eos else None

    def of_source(self, ids: Tensor) -> Tensor:
        """Add the language to the ``(n,)`` ids of a source that ends in EOS."""
        if self.source is None:
            return ids
        token = ids.new_tensor([self.source])
        return torch.cat([ids[:-1], token] if self.replace_eos else [token, ids])

    def beginning(self, source: Tensor) -> Beginning:
        """Return the beginning of the targets of ``(rows, n)`` sources."""
        forced = source.new_tensor(self.forced).expand(len(source), -1) if self.forced else None
        return {"prefix_tokens": forced, "bos_token": self.begin}


@dataclass(frozen=True)
class Multilingual:
    """The languages of a checkpoint."""

    langs: tuple[str, ...]
    """The languages in the order of their tokens."""
    style: str
    """fairseq's name for the spelling of tokens."""
    specs: tuple[str, ...]
    """The kinds of tokens of each language."""
    source_spec: str | None
    """The token of sources: ``src`` or ``tgt``, with its kind if it is not the main; None: none."""
    target_spec: str | None
    """The same of targets."""
    replace_eos: bool
    """See :class:`LanguageTokens`."""
    has_mask: bool
    """True if dictionaries have a token for denoising."""
    has_tags: bool = False
    """True if dictionaries have NLLB's tags."""

    @classmethod
    def of(cls, values: Mapping[str, object], folder: str) -> Multilingual:
        """Return the languages that the options of fairseq's task describe.

        Args:
            values: options by name; those of ``langtoks`` as ``langtoks_main``.
            folder: the folder of the list of languages, if that is a file.

        Raises:
            ConfigError: no languages are named, or a value is impossible.
        """
        for name in OF_BRANCH:
            if values.get(name):
                flag = name.replace("_", "-")
                raise ConfigError(f"--{flag}, of a branch of fairseq, is not supported")
        langs, pairs = (_names(values, name) for name in ("langs", "lang_pairs"))
        listed = values.get("lang_dict")
        if not langs and listed:
            args = Namespace(langs=None, lang_dict=_beside(folder, str(listed)))
            langs = MultilingualDatasetManager.load_langs(args)
        langs = langs or sorted({language for pair in pairs for language in pair.split("-")})
        if not langs:
            raise ConfigError(
                "its task is multilingual, and it names no languages; name a file "
                "that fairseq-train has saved"
            )
        style = values.get("lang_tok_style") or LangTokStyle.multilingual.value
        if style not in [item.value for item in LangTokStyle]:
            raise ConfigError(f"its task has lang_tok_style {shown(style)}, which is unknown")
        specs = values.get("langtoks_main")
        if specs is None:
            decoder = "tgt" if values.get("decoder_langtok") else None
            specs = (values.get("encoder_langtok"), decoder)
        if not isinstance(specs, (list, tuple)) or len(specs) != 2:
            raise ConfigError('its task has langtoks that are no pair for "main"')
        return cls(
            tuple(langs),
            str(style),
            tuple(_names(values, "langtoks_specs")) or (LangTokSpec.main.value,),
            _spec(specs[0]),
            _spec(specs[1]),
            bool(values.get("lang_tok_replacing_bos_eos")),
            f"extra_data_{LangTokSpec.mono_dae.value}" in values,
            bool(values.get("add_data_source_prefix_tags")),
        )

    def task_options(self) -> JsonObject:
        """Return all options of fairseq's task: these, and defaults."""
        parser = ArgumentParser()
        TranslationMultiSimpleEpochTask.add_args(parser)
        defaults = vars(parser.parse_args(["."]))
        general = {"task": TASK, "data": None, "seed": 1, "dataset_impl": None}
        pair = f"{self.langs[0]}-{self.langs[-1]}"
        more = {"lang_pairs": pair, "shuffle_instance": False, **self.options()}
        return {**defaults, **general, **more}

    def options(self) -> JsonObject:
        """Return the options of fairseq's task that :meth:`of` reads."""
        return {
            "langs": list(self.langs),
            "lang_tok_style": self.style,
            "langtoks_specs": list(self.specs),
            "langtoks": {LangTokSpec.main.value: [self.source_spec, self.target_spec]},
            "lang_tok_replacing_bos_eos": self.replace_eos,
            "extra_data": {LangTokSpec.mono_dae.value: ""} if self.has_mask else None,
            "add_data_source_prefix_tags": self.has_tags,
        }

    @property
    def known(self) -> str:
        """The languages in a sentence."""
        return ", ".join(sorted(self.langs))

    def augment(self, dictionary: Dictionary) -> None:
        """Add the tokens to a dictionary, as fairseq does."""
        extra = self.options()["extra_data"]
        augment_dictionary(dictionary, list(self.langs), self.style, self.specs, extra)
        for tag in TAGS if self.has_tags else ():
            dictionary.add_symbol(tag)

    def check(self, languages: tuple[str, str]) -> None:
        """Check that the model has these languages, source and target.

        Raises:
            ConfigError: a language is none of the model's.
        """
        for flag, language in zip(("-s", "-t"), languages):
            if language not in self.langs:
                raise ConfigError(
                    f"{flag} {language}: is none of the verifier's languages: {self.known}"
                )

    def tokens(
        self, languages: tuple[str, str], dictionaries: tuple[Dictionary, Dictionary]
    ) -> LanguageTokens:
        """Return the tokens of a direction.

        Args:
            languages: source and target.
            dictionaries: those of both, with the tokens.

        Raises:
            ConfigError: a language, or its token, is unknown.
        """
        self.check(languages)
        source, target = languages
        args = Namespace(
            seed=0,
            extra_lang_pairs=None,
            lang_pairs=[],
            lang_tok_style=self.style,
            source_dict=None,
            target_dict=None,
        )
        named = dict(zip(languages, dictionaries))
        manager = MultilingualDatasetManager(args, [], self.langs, named, None)
        try:
            return LanguageTokens(
                manager.get_encoder_langtok(source, target, self.source_spec),
                manager.get_decoder_langtok(target, self.target_spec),
                self.replace_eos,
            )
        except AssertionError as error:
            raise ConfigError(str(error)) from error


def adopt(multilingual: Multilingual, task: FairseqTask, name: str) -> None:
    """Give a task the languages of the checkpoint ``name``, and its dictionaries their tokens.

    Raises:
        CheckpointError: the checkpoint lacks the task's languages, or those of another checkpoint
            differ.
    """
    if getattr(task, "multilingual", None) not in (None, multilingual):
        raise CheckpointError(
            f"{name}: has other languages, or their tokens elsewhere, than the other checkpoint; "
            "give a drafter and the verifier that it was trained for"
        )
    dictionaries = task.source_dictionary, task.target_dictionary
    for dictionary in dictionaries:
        multilingual.augment(dictionary)
    try:
        languages = task.cfg.source_lang, task.cfg.target_lang
        task.language_tokens = multilingual.tokens(languages, dictionaries)
    except ConfigError as error:
        raise CheckpointError(f"{name}: {error}") from error
    task.multilingual = multilingual


def _names(values: Mapping[str, object], name: str) -> list[str]:
    """Return a list of names, which may be text with commas."""
    value = values.get(name) or []
    names = value.split(",") if isinstance(value, str) else value
    if (
        not isinstance(names, (list, tuple))
        or len(names) > MAX_NAMES
        or not all(isinstance(name, str) and NAME.fullmatch(name) for name in names)
    ):
        raise ConfigError(f"its task has {name} that are no list of names")
    return list(names)


def _beside(folder: str, listed: str) -> str:
    """Return the path of a list of languages, which training had elsewhere."""
    path = os.path.join(folder, os.path.basename(listed))
    if not os.path.isfile(path):
        raise ConfigError(f"its languages are listed in a file; put that beside it, as {path}")
    return path


def _spec(value: object) -> str | None:
    """Check the name of a token."""
    if not value:
        return None
    if not isinstance(value, str) or not SPEC.fullmatch(value):
        raise ConfigError(f"its task has the language token {shown(value)}, which is unknown")
    return value
