"""Text to dictionary ids, and back, by fairseq's tokenizers and BPEs.

White space at a line's ends is dropped, as by ``fairseq-interactive``; a blank line stays blank,
and no model is run for it; a line longer than the encoder has positions for is cut, with a warning
that names it; a carriage return or line feed within a line is a blank. Words that spell a special
symbol (``<s>``, ``</s>``) become that symbol, but ``<pad>``, which no model sees, is left out.
"""

from __future__ import annotations

import logging
import re
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import fields
from typing import NamedTuple, Protocol

import torch
from fairseq.data import Dictionary, encoders
from fairseq.registry import REGISTRIES
from fairseq.tokenizer import tokenize_line
from omegaconf import MISSING
from torch import Tensor

from specdec_plugins.checkpoints.archive import one_line
from specdec_plugins.checkpoints.multilingual import LanguageTokens
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.lines import Line
from specdec_plugins.inference.pair_folder import TRANSFORMERS, files_in_folder
from specdec_plugins.inference.settings import Settings
from specdec_plugins.tasks.recipes import flag
from specdec_plugins.verifiers.families import family_of

logger = logging.getLogger(__name__)

LINE_ENDS = re.compile(r"[\r\n]+")
#: Options of fairseq's tokenizers and BPEs that are settings of their own.
OF_SETTINGS = ("tokenizer", "bpe", "source_lang", "target_lang")


class Segmenter(Protocol):
    """One of fairseq's tokenizers or BPEs."""

    def encode(self, x: str) -> str: ...
    def decode(self, x: str) -> str: ...


class Segmenters(NamedTuple):
    """fairseq's tokenizer and BPE, as far as a text needs them."""

    #: Segmenters of a source, in their order.
    cut: Sequence[Segmenter] = ()
    #: Segmenters that join an output.
    join: Sequence[Segmenter] = ()
    #: fairseq's post-processing of an output, before it is joined.
    markers: str | None = None


class TextCodec:
    """Source text to ids and target ids to text, by a dictionary, a tokenizer and BPE."""

    def __init__(
        self,
        source: Dictionary,
        target: Dictionary,
        longest: int,
        segmenters: Segmenters = Segmenters(),
        tokens: LanguageTokens = LanguageTokens(),
    ) -> None:
        """
        Args:
            longest: the most source tokens, EOS and the language included.
            tokens: languages, which are in the dictionaries, but not in texts.
        """
        self.source = source
        self.target = target
        self.tokens = tokens
        self.longest = longest - tokens.added
        self.segmenters = segmenters

    def encode(self, line: Line) -> Tensor | None:
        """Return ``(tokens,)`` ids with EOS and the language; None for a line without words."""
        return self.encode_or_cut(line)[0]

    def encode_or_cut(self, line: Line) -> tuple[Tensor | None, bool]:
        """Return :meth:`encode`'s, and whether the encoder had no positions for all of them."""
        ids = self._ids(self.source, line.text)
        ids = ids[ids != self.source.pad()]
        words = ids[:-1]
        if len(words) == 0:
            return None, False
        cut = len(ids) > self.longest
        if cut:
            logger.warning(
                "line %d: %d tokens are more than the encoder has positions for; cut to %d",
                line.number,
                len(words),
                self.longest - 1,
            )
            ids = torch.cat([words[: self.longest - 1], ids[-1:]])
        return self.tokens.of_source(ids), cut

    def unknown_word(self, line: Line) -> str:
        """Return a warning that names a line's first word that the dictionary lacks."""
        unk = self.source.unk()
        words = tokenize_line(self.segment(line.text))
        unknown = next((word for word in words if self.source.index(word) == unk), "a word")
        fault = f"line {line.number}: the dictionary lacks {unknown}, so the model reads <unk>"
        if not self.segmenters.cut:
            fault += "; if the text is not segmented yet, give --tokenizer and --bpe as in training"
        return fault

    def _ids(self, dictionary: Dictionary, text: str) -> Tensor:
        """Return ``(tokens,)`` ids of a text, EOS included."""
        segmented = self.segment(LINE_ENDS.sub(" ", text).strip())
        ids: Tensor = dictionary.encode_line(segmented, add_if_not_exist=False)
        return ids.long()

    def segment(self, text: str) -> str:
        """Return the tokens of a text, with blanks between."""
        for segmenter in self.segmenters.cut:
            text = segmenter.encode(text)
        return text

    def encode_prefix(self, text: str | None) -> Tensor:
        """Return ``(tokens,)`` ids of a segmented target prefix, after the targets' language."""
        target = self.target
        words = tokenize_line(text or "")
        ids = [target.index(word) for word in words]
        for word, index in zip(words, ids):
            if index in (target.bos(), target.pad(), target.eos(), target.unk()):
                raise ValueError(
                    f"--target-prefix {text}: the target dictionary has no word {word}; give "
                    "words that it has, segmented as in training, with blanks between"
                )
        forced = self.tokens.forced
        # The prefix may name the language, too.
        if ids[: len(forced)] != forced:
            ids = [*forced, *ids]
        return torch.tensor(ids, dtype=torch.long)

    def encode_constraint(self, text: str) -> Tensor:
        """Return ``(tokens,)`` ids of a text that an output is to have, segmented as a source."""
        return self._ids(self.target, text)[:-1]

    def encode_draft(self, text: str, longest: int) -> Tensor:
        """Return ``(tokens,)`` ids, EOS included, of a text that an output may resemble; at most
        the first ``longest`` of them. An empty text has none."""
        # A word has at least one token.
        words = text.split(maxsplit=longest)[:longest]
        if not words:
            return torch.empty(0, dtype=torch.long)
        ids = self._ids(self.target, " ".join(words))
        return torch.cat([ids.new_tensor(self.tokens.forced), ids])[:longest]

    def decode(self, tokens: Tensor) -> str:
        """Return the text of a hypothesis, in one line: a BPE of bytes may put out a line feed."""
        text: str = self.target.string(
            tokens.cpu(),
            self.segmenters.markers,
            extra_symbols_to_ignore={self.tokens.target} - {None},
        )
        for segmenter in self.segmenters.join:
            text = segmenter.decode(text)
        return LINE_ENDS.sub(" ", text)


def build_segmenters(settings: Settings) -> Segmenters:
    """Set up fairseq's tokenizer and BPE for the settings' languages."""
    if settings.bpe == TRANSFORMERS:
        family = family_of(settings.data)
        pieces: list[Segmenter] = [family.saved or family.pieces()]
        return Segmenters(pieces, [] if settings.keep_bpe else pieces)
    known = {n: value for n, value in settings.encoder_options.items() if value != MISSING}
    known |= {name: getattr(settings, name) for name in OF_SETTINGS}
    options = Namespace(**{**files_in_folder(settings.data), **known})
    built = []
    for kind, build in (("tokenizer", encoders.build_tokenizer), ("bpe", encoders.build_bpe)):
        _check_files(kind, options)
        try:
            built.append(build(options))
        # Each fails differently: missing files, packages, options. The BPE reader exits.
        except (Exception, SystemExit) as error:
            raise InferenceError(
                f"--{kind} {getattr(options, kind)}: cannot be set up ({one_line(error)})"
            ) from error
    cut = [segmenter for segmenter in built if segmenter is not None]
    if settings.keep_bpe:
        return Segmenters(cut)
    markers = settings.post_process or ("subword_nmt" if settings.bpe is None else None)
    return Segmenters(cut, cut[::-1], markers)


def _check_files(kind: str, options: Namespace) -> None:
    """Refuse a tokenizer or BPE whose file is missing, or would be fetched."""
    name = getattr(options, kind)
    form = REGISTRIES[kind]["dataclass_registry"].get(name)
    for field in fields(form) if form else ():
        value = getattr(options, field.name, None) or field.default
        if value == MISSING or "://" in str(value):
            raise InferenceError(
                f"--{kind} {name}: give a file by {flag(field.name)}, or beside dictionaries"
            )
