"""``m2m_100``: M2M-100 and NLLB, whose directions are chosen by ``-s`` and ``-t``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar

import msgspec

from specdec_plugins.checkpoints.multilingual import Multilingual
from specdec_plugins.files.errors import CheckpointError
from specdec_plugins.files.output import JsonObject
from specdec_plugins.verifiers.family import Family, Token, Vocabulary
from specdec_plugins.verifiers.folder import read_json, read_optional
from specdec_plugins.verifiers.pieces import Pieces, load_pieces

#: Spellings of a language's token: M2M-100's, which is fairseq's, and NLLB's.
LANGUAGE = re.compile(r"__\w{2,16}__|[a-z]{3}_[A-Z][a-z]{3}")
#: The first tokens of NLLB; its pieces follow, without their own special ones.
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
FIRST_PIECE = 3


class AddedToken(msgspec.Struct):
    """An added token of ``tokenizer_config.json``."""

    content: str


class Tokenizer(msgspec.Struct):
    """A ``tokenizer_config.json``, or a ``special_tokens_map.json``."""

    #: Added tokens by their numbers.
    added_tokens_decoder: dict[Token, AddedToken] = {}
    additional_special_tokens: list[str] | None = None
    src_lang: str | None = None
    tgt_lang: str | None = None
    legacy_behaviour: bool = False


class M2M(Family):
    """Pre-norm; positions are fairseq's. A source begins with its language, and a target with its
    own, after EOS; a folder without languages is of one direction."""

    model_type = "m2m_100"
    options: ClassVar[JsonObject] = {
        "encoder_normalize_before": True,
        "decoder_normalize_before": True,
        "encoder_learned_pos": False,
        "decoder_learned_pos": False,
    }
    spm = "sentencepiece.bpe.model"

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The options of the tokenizer."""
        path = self.folder / "tokenizer_config.json"
        tokenizer = read_optional(path, Tokenizer)
        if tokenizer.legacy_behaviour:
            fault = "sources that end with their language are not supported"
            raise CheckpointError(f"{path}: legacy_behaviour: {fault}")
        return tokenizer

    @property
    def languages(self) -> tuple[str | None, str | None]:
        return self.tokenizer.src_lang, self.tokenizer.tgt_lang

    @property
    def multilingual(self) -> Multilingual | None:
        spelled = sorted(self._languages.items(), key=lambda item: item[1])
        names = tuple(token.strip("_") for token, _ in spelled)
        return Multilingual(langs=names, source_spec="src", target_spec="tgt") if names else None

    def tokens(self, side: str) -> Mapping[str, int]:
        spelled = {f"__{token.strip('_')}__": i for token, i in self._languages.items()}
        return {**self._words, **spelled}

    def pieces(self) -> Pieces:
        path = self.folder / self.spm
        return Pieces(path, path, {*SPECIAL, *filter(LANGUAGE.fullmatch, self.tokens("target"))})

    @cached_property
    def _words(self) -> dict[str, int]:
        """Tokens that are no languages: M2M-100's are listed, NLLB's are those of its pieces."""
        path = self.folder / "vocab.json"
        if path.is_file():
            return read_json(path, Vocabulary)
        model = load_pieces(self.folder / self.spm)
        names = [*SPECIAL, *map(model.id_to_piece, range(FIRST_PIECE, len(model)))]
        return {name: index for index, name in enumerate(names)}

    @cached_property
    def _languages(self) -> dict[str, int]:
        """The numbers of languages' tokens, as the folder spells them: those that a file states, or
        those after all other tokens."""
        added = {token.content: i for i, token in self.tokenizer.added_tokens_decoder.items()}
        added |= read_optional(self.folder / "added_tokens.json", Vocabulary)
        if not any(map(LANGUAGE.fullmatch, added)):
            special = read_optional(self.folder / "special_tokens_map.json", Tokenizer)
            names = self.tokenizer.additional_special_tokens or special.additional_special_tokens
            languages = filter(LANGUAGE.fullmatch, names or ())
            added = {name: i for i, name in enumerate(languages, len(self._words))}
        return {token: i for token, i in added.items() if LANGUAGE.fullmatch(token)}
