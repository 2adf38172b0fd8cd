"""The languages of multilingual models, and the positions of their tokens.

fairseq trains such models by ``--task translation_multi_simple_epoch`` (M2M-100, NLLB). Its
functions name the tokens, add them to dictionaries and look them up.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import torch
from fairseq.data import Dictionary
from fairseq.data.multilingual.multilingual_data_manager import MultilingualDatasetManager
from fairseq.data.multilingual.multilingual_utils import (
    LangTokSpec,
    LangTokStyle,
    augment_dictionary,
    get_lang_tok,
)
from fairseq.tasks import FairseqTask
from fairseq.tasks.translation_multi_simple_epoch import TranslationMultiSimpleEpochTask
from torch import Tensor

from specdec_plugins.files.errors import CheckpointError, ConfigError
from specdec_plugins.files.output import JsonObject

TASK = "translation_multi_simple_epoch"
#: The key of the languages in the ``task_state`` of the plugin's checkpoints.
KEY = "multilingual"

Name = Annotated[str, msgspec.Meta(pattern=r"\A[^\s,]{1,64}\Z")]
Names = Annotated[tuple[Name, ...], msgspec.Meta(max_length=1 << 17)]
#: The kind of token that is BOS, whatever the language: BART's.
BOS = "bos"
Spec = Annotated[str, msgspec.Meta(pattern=r"\A((src|tgt)(\.\w{1,32})?|bos)\Z")] | None
#: The last entries of dictionaries of NLLB's branch of fairseq (``--add-data-source-prefix-tags``),
#: used in its training only.
TAGS = ("<MINED_DATA>", "<MMT_BT_DATA>", "<SMT_BT_DATA>")


@dataclass(frozen=True)
class LanguageTokens:
    """The language tokens of a direction, or BOS in their place; most models of two languages have
    none."""

    #: The token of sources, in the source dictionary.
    source: int | None = None
    #: The token with which targets begin.
    target: int | None = None
    #: True if the tokens replace the EOS that ends a source and begins a target; otherwise they
    #: come before the source, and after the EOS of the target.
    replace_eos: bool = False
    #: True if the token of a source follows its EOS, whatever ``replace_eos`` says.
    source_after_eos: bool = False

    @property
    def added(self) -> int:
        """The number of tokens added to a source."""
        return int(self.source is not None and (self.source_after_eos or not self.replace_eos))

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
        if self.source_after_eos:
            return torch.cat([ids, token])
        if self.replace_eos:
            return torch.cat([ids[:-1], token])
        return torch.cat([token, ids])


class Multilingual(msgspec.Struct, frozen=True):
    """The languages of a checkpoint: fairseq's options, safely typed."""

    #: The languages in the order of their tokens; none where the only token is BOS.
    langs: Names
    #: The token of sources: ``src`` or ``tgt``, with its kind if it is not the main, or ``bos``;
    #: None: none.
    source_spec: Spec = None
    target_spec: Spec = None
    #: The spelling of tokens.
    lang_tok_style: LangTokStyle = LangTokStyle.multilingual
    #: The kinds of tokens of each language.
    langtoks_specs: Names = (LangTokSpec.main.value,)
    #: See :class:`LanguageTokens`.
    lang_tok_replacing_bos_eos: bool = False
    #: See :class:`LanguageTokens`; fairseq has no such option.
    source_after_eos: bool = False
    #: True if dictionaries have NLLB's tags.
    add_data_source_prefix_tags: bool = False
    #: True if dictionaries have a token for denoising.
    has_mask: bool = False

    @property
    def is_stock(self) -> bool:
        """True if fairseq's task puts the tokens where they belong."""
        return bool(self.langs) and not self.source_after_eos

    @classmethod
    def of(cls, values: Mapping[str, object], folder: str) -> Multilingual:
        """Return the languages that the options of fairseq's task describe.

        Args:
            values: options by name; those of ``langtoks`` as ``langtoks_main``.
            folder: that of the list of languages, if that is a file.
        """
        saved: dict[str, Any] = {
            name: value
            for name, value in values.items()
            if value and isinstance(value, (bool, int, str, list, tuple))
        }
        if values.get("langs") == []:
            saved["langs"] = []
        for name in ("langs", "lang_pairs", "langtoks_specs"):
            if isinstance(saved.get(name), str):
                saved[name] = saved[name].split(",")
        if "langs" not in saved and "lang_dict" in saved:
            # Training had the file elsewhere.
            path = os.path.join(folder, os.path.basename(str(saved["lang_dict"])))
            if not os.path.isfile(path):
                raise ConfigError(f"its languages are listed in a file; put that there: {path}")
            saved["langs"] = MultilingualDatasetManager.load_langs(
                Namespace(langs=None, lang_dict=path)
            )
        elif "langs" not in saved and isinstance(saved.get("lang_pairs"), (list, tuple)):
            pairs = (str(pair).split("-") for pair in saved["lang_pairs"])
            saved["langs"] = sorted({name for pair in pairs for name in pair})
        target = "tgt" if "decoder_langtok" in saved else None
        specs = saved.get("langtoks_main") or (saved.get("encoder_langtok"), target)
        saved["has_mask"] = f"extra_data_{LangTokSpec.mono_dae.value}" in values
        try:
            saved |= zip(("source_spec", "target_spec"), specs)
            return msgspec.convert(saved, cls)
        except (msgspec.ValidationError, TypeError, RecursionError) as error:
            raise ConfigError(f"its task: {ascii(str(error))[1:-1][:200]}") from None

    def options(self) -> JsonObject:
        """Return the options of fairseq's task that :meth:`of` reads."""
        return {
            "langs": list(self.langs),
            "lang_tok_style": self.lang_tok_style.value,
            "langtoks_specs": list(self.langtoks_specs),
            "langtoks": {LangTokSpec.main.value: [self.source_spec, self.target_spec]},
            "lang_tok_replacing_bos_eos": self.lang_tok_replacing_bos_eos,
            "source_after_eos": self.source_after_eos,
            "extra_data": {LangTokSpec.mono_dae.value: ""} if self.has_mask else None,
            "add_data_source_prefix_tags": self.add_data_source_prefix_tags,
        }

    def task_options(self) -> JsonObject:
        """Return all options of fairseq's task: these, and defaults."""
        parser = ArgumentParser()
        TranslationMultiSimpleEpochTask.add_args(parser)
        return {
            **vars(parser.parse_args(["."])),
            "task": TASK,
            "data": None,
            "seed": 1,
            "dataset_impl": None,
            "lang_pairs": f"{self.langs[0]}-{self.langs[-1]}",
            "shuffle_instance": False,
            **self.options(),
        }

    def augment(self, dictionary: Dictionary) -> None:
        """Add the tokens to a dictionary, as fairseq does."""
        augment_dictionary(
            dictionary,
            list(self.langs),
            self.lang_tok_style.value,
            self.langtoks_specs,
            self.options()["extra_data"],
        )
        if self.add_data_source_prefix_tags:
            for tag in TAGS:
                dictionary.add_symbol(tag)

    def tokens(self, task: FairseqTask) -> LanguageTokens:
        """Return the tokens of a task's direction, whose dictionaries have them."""
        named = task.cfg.source_lang
        if (self.source_spec or "").startswith("tgt"):
            named = task.cfg.target_lang
        return LanguageTokens(
            self._token(self.source_spec, named, task.source_dictionary),
            self._token(self.target_spec, task.cfg.target_lang, task.target_dictionary),
            self.lang_tok_replacing_bos_eos,
            self.source_after_eos,
        )

    def _token(self, spec: str | None, language: str, dictionary: Dictionary) -> int | None:
        if spec is None:
            return None
        if spec == BOS:
            return int(dictionary.bos())
        token = get_lang_tok(language, self.lang_tok_style.value, spec)
        index: int = dictionary.index(token)
        if index == dictionary.unk():
            raise ConfigError(
                f"-s, -t: the verifier has no {token}; its languages: "
                f"{', '.join(sorted(self.langs))}"
            )
        return index


def adopt(multilingual: Multilingual, task: FairseqTask, name: str) -> None:
    """Give a task the languages of the checkpoint ``name``, and its dictionaries their tokens."""
    if getattr(task, "multilingual", None) not in (None, multilingual):
        raise CheckpointError(
            f"{name}: has other languages, or their tokens elsewhere, than the other checkpoint; "
            "give a drafter and the verifier of its training"
        )
    for dictionary in (task.source_dictionary, task.target_dictionary):
        multilingual.augment(dictionary)
    try:
        tokens = multilingual.tokens(task)
    except ConfigError as error:
        raise CheckpointError(f"{name}: {error}") from error
    task.set_languages(multilingual, tokens)
