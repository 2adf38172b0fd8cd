"""Multilingual models: which languages a checkpoint has, and where their tokens stand in a batch.

fairseq trains them by ``--task translation_multi_simple_epoch`` (M2M-100, NLLB). Its own functions
name the tokens, add them to dictionaries and find them there.
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
"""The key of a checkpoint's ``task_state`` under which our own models keep this."""

NAME = re.compile(r"[^\s,]{1,64}")
SPEC = re.compile(r"(src|tgt)(\.\w{1,32})?")
TAGS = ("<MINED_DATA>", "<MMT_BT_DATA>", "<SMT_BT_DATA>")
"""The last entries of dictionaries of NLLB's branch of fairseq (``--add-data-source-prefix-tags``),
which nothing but its training puts anywhere."""
OF_BRANCH = ("add_ssl_task_tokens", "finetune_dict_specs")
"""Its options by which dictionaries have more entries, of which this knows nothing."""
MOST = 1 << 17
"""The most languages, or pairs of them."""


class Beginning(TypedDict):
    """The beginning of a batch's targets, as fairseq's generators take it."""

    prefix_tokens: Tensor | None
    bos_token: int | None


@dataclass(frozen=True)
class LanguageTokens:
    """The tokens of one direction; a model of two languages has none."""

    source: int | None = None
    """The one that its sources have, in the source dictionary."""
    target: int | None = None
    """The one that its targets begin with."""
    replace_eos: bool = False
    """True if they replace the EOS that ends a source and begins a target; otherwise they stand
    before the source, and after the EOS that begins the target."""

    @property
    def before_source(self) -> int:
        """Tokens that a source gets in addition."""
        return int(self.source is not None and not self.replace_eos)

    @property
    def forced(self) -> list[int]:
        """The tokens with which an output begins, after EOS."""
        return [] if self.target is None or self.replace_eos else [self.target]

    @property
    def begin(self) -> int | None:
        """The token in place of the EOS that targets begin with; None: EOS."""
        return self.target if self.replace_eos else None

    def of_source(self, ids: Tensor) -> Tensor:
        """Return the ``(n,)`` ids of a source, EOS last, with its language."""
        if self.source is None:
            return ids
        token = ids.new_tensor([self.source])
        return torch.cat([ids[:-1], token] if self.replace_eos else [token, ids])

    def beginning(self, source: Tensor) -> Beginning:
        """Return the beginning of the targets of ``source`` ``(rows, n)``."""
        forced = source.new_tensor(self.forced).expand(len(source), -1) if self.forced else None
        return {"prefix_tokens": forced, "bos_token": self.begin}


@dataclass(frozen=True)
class Multilingual:
    """The languages of a checkpoint."""

    langs: tuple[str, ...]
    """In the order of their tokens."""
    style: str
    """The spelling of tokens, by fairseq's name for it."""
    specs: tuple[str, ...]
    """The kinds of tokens that each language has."""
    source_spec: str | None
    """The token of sources: ``src`` or ``tgt``, perhaps of another kind; None: none."""
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
        """Return what the options of fairseq's task say, by name; those of ``langtoks`` as
        ``langtoks_main``.

        Args:
            folder: where a list of languages lies, if it was saved as the name of a file.

        Raises:
            ConfigError: the languages cannot be told, or a value cannot be.
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
        # As fairseq does, which then warns of what may befall a training.
        langs = langs or sorted({language for pair in pairs for language in pair.split("-")})
        if not langs:
            raise ConfigError(
                "its task is multilingual, and it names no languages; name a file "
                "that fairseq-train has saved"
            )
        style = values.get("lang_tok_style") or LangTokStyle.multilingual.value
        if style not in [one.value for one in LangTokStyle]:
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
        """All options of fairseq's task: these, and defaults."""
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
        """Its languages, to read."""
        return ", ".join(sorted(self.langs))

    def augment(self, dictionary: Dictionary) -> None:
        """Add the tokens to a dictionary, as fairseq does where it loads one."""
        extra = self.options()["extra_data"]
        augment_dictionary(dictionary, list(self.langs), self.style, self.specs, extra)
        for tag in TAGS if self.has_tags else ():
            dictionary.add_symbol(tag)

    def check(self, languages: tuple[str, str]) -> None:
        """
        Raises:
            ConfigError: it has not both of them, source and target.
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
            dictionaries: of both, with the tokens.

        Raises:
            ConfigError: a language is none of the model's, or its token has no place.
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
    """Let a task be of a checkpoint's languages: its dictionaries get their tokens.

    Args:
        name: the checkpoint's file, for messages.

    Raises:
        CheckpointError: the task's languages are none of the checkpoint's, or it was given those of
            another one.
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
    """Return a list of names, which fairseq also takes with commas between them."""
    value = values.get(name) or []
    names = value.split(",") if isinstance(value, str) else value
    if (
        not isinstance(names, (list, tuple))
        or len(names) > MOST
        or not all(isinstance(one, str) and NAME.fullmatch(one) for one in names)
    ):
        raise ConfigError(f"its task has {name} that are no list of names")
    return list(names)


def _beside(folder: str, listed: str) -> str:
    """Return the path of the list of languages, which is not where it was in training."""
    path = os.path.join(folder, os.path.basename(listed))
    if not os.path.isfile(path):
        raise ConfigError(f"its languages are listed in a file; put that beside it, as {path}")
    return path


def _spec(value: object) -> str | None:
    """Return which token stands somewhere."""
    if not value:
        return None
    if not isinstance(value, str) or not SPEC.fullmatch(value):
        raise ConfigError(f"its task has the language token {shown(value)}, which is unknown")
    return value
