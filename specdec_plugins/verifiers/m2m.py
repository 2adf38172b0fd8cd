"""``m2m_100``: M2M-100 and NLLB, whose directions are chosen by ``-s`` and ``-t``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import ClassVar

from fairseq.data.multilingual.multilingual_utils import LangTokStyle, get_lang_tok

from specdec_plugins.checkpoints.multilingual import Multilingual
from specdec_plugins.files.output import JsonObject
from specdec_plugins.verifiers.family import Family, Tokenizer, Vocabulary
from specdec_plugins.verifiers.folder import read_json, read_optional
from specdec_plugins.verifiers.pieces import Pieces, load_pieces, sentencepiece

SPM = "sentencepiece.bpe.model"
#: The first tokens of NLLB; its pieces follow, without their own special ones.
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
FIRST_PIECE = 3
MASK = "<mask>"


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
    segmentation: ClassVar[dict[str, str]] = sentencepiece(SPM)
    #: Spellings of a language's token: M2M-100's, which is fairseq's, and NLLB's.
    language = re.compile(r"__\w{2,16}__|[a-z]{3}_[A-Z][a-z]{3}")
    #: fairseq's spelling.
    style = LangTokStyle.multilingual

    @property
    def languages(self) -> tuple[str | None, str | None]:
        first = (self.stated_start, self.generation.forced_bos_token_id)
        named = (name for name, i in self._languages.items() if i in first)
        return self.tokenizer.src_lang, next(named, self.tokenizer.tgt_lang)

    @property
    def multilingual(self) -> Multilingual | None:
        if not self._languages:
            return super().multilingual
        return Multilingual(
            langs=tuple(self._languages),
            source_spec="src",
            target_spec="tgt",
            lang_tok_style=self.style,
            lang_tok_replacing_bos_eos=self.language_starts,
            source_after_eos=self.source_after_eos,
        )

    @property
    def usual(self) -> Sequence[str]:
        """The languages where no file lists them."""
        return ()

    @property
    def language_starts(self) -> bool:
        """True if targets begin with their language in place of EOS."""
        return self.stated_start in (None, *self._languages.values())

    @cached_property
    def start(self) -> int:
        # A decoder that begins with a language reads that language's own token.
        return self.config.eos_token_id if self.language_starts else super().start

    @property
    def source_after_eos(self) -> bool:
        """True if a source's language follows its EOS."""
        return self.tokenizer.legacy_behaviour

    @cached_property
    def _spelled(self) -> dict[str, int]:
        """The numbers of languages' tokens, as fairseq spells them."""
        return {
            get_lang_tok(name, self.style.value): number for name, number in self._languages.items()
        }

    def tokens(self, side: str) -> Mapping[str, int]:
        return {**self._words, **self._spelled}

    def pieces(self) -> Pieces:
        path = self.folder / SPM
        return Pieces(path, path, {*SPECIAL, MASK, *self._spelled})

    @cached_property
    def _words(self) -> dict[str, int]:
        """Tokens that are no languages: M2M-100's are listed, NLLB's are those of its pieces."""
        if self.saved is not None:
            return self.saved.vocabulary
        path = self.folder / "vocab.json"
        if path.is_file():
            return read_json(path, Vocabulary)
        model = load_pieces(self.folder / SPM)
        names = [*SPECIAL, *map(model.id_to_piece, range(FIRST_PIECE, len(model)))]
        return {name: index for index, name in enumerate(names)}

    @cached_property
    def _languages(self) -> dict[str, int]:
        """The numbers of languages' tokens, in their order: as a file states them, or after all
        other tokens."""
        added = {token.content: i for i, token in self.tokenizer.added_tokens_decoder.items()}
        added |= read_optional(self.folder / "added_tokens.json", Vocabulary)
        if self.saved is not None:
            added |= self.saved.vocabulary
        is_language = self.language.fullmatch
        if not any(map(is_language, added)):
            special = read_optional(self.folder / "special_tokens_map.json", Tokenizer)
            names = self.tokenizer.additional_special_tokens or special.additional_special_tokens
            languages = list(filter(is_language, names or ())) or self.usual
            added = {name: i for i, name in enumerate(languages, len(self._words))}
        ordered = sorted(filter(is_language, added), key=added.__getitem__)
        return {token.strip("_"): added[token] for token in ordered}
