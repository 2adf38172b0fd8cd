"""BLEU of a translation: sacreBLEU's, and tokenised, compound-split BLEU as in SpecDec's paper."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import regex
from sacrebleu.metrics.bleu import BLEU, BLEUScore
from sacremoses import MosesDetokenizer, MosesTokenizer

COMPOUND = re.compile(rb"(\S)-(\S)")
DASH_SPLIT = re.compile(r"(?<=\S) @-@ (?=\S)")
#: Codes of NLLB for languages for which sacreBLEU has a tokenizer.
CODES = {"zho": "zh", "jpn": "ja", "kor": "ko"}
LETTER = regex.compile(r"\p{Letter}")
#: Letters of scripts that put no blanks between words.
WITHOUT_BLANKS = regex.compile(
    r"(?=\p{Letter})[\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
    r"\p{Tibetan}\p{Tai_Le}\p{New_Tai_Lue}\p{Tai_Tham}\p{Tai_Viet}\p{Javanese}\p{Balinese}]"
)


@dataclass(frozen=True)
class References:
    """The wanted translation, line by line."""

    lines: Sequence[str]
    language: str
    #: True if it is Moses-tokenised already, and so is the output.
    tokenised: bool = False

    def bleu(self, output: Sequence[str]) -> float:
        """Return sacreBLEU's figure of an output, given line by line."""
        score = metric_of(self.language, self.lines).corpus_score(output, [self.lines])
        return float(score.score)

    def tokenised_bleu(self, output: Sequence[str]) -> float:
        """Return the figure of Moses tokens with compounds split."""
        score = compound_split_bleu(self._tokens(output), self._tokens(self.lines))
        return float(score.score)

    def signature(self) -> str:
        """Return sacreBLEU's signature, which says how it counts."""
        metric = metric_of(self.language, self.lines)
        metric.corpus_score(self.lines, [self.lines])
        return str(metric.get_signature())

    def _tokens(self, lines: Sequence[str]) -> list[str]:
        if self.tokenised:
            return plain_tokens(lines, self.language)
        return tokens_of(lines, self.language, metric_of(self.language, self.lines))


def metric_of(language: str, references: Sequence[str]) -> BLEU:
    """Return sacreBLEU with its tokenizer for a language such as ``de``, ``zh_CN``, ``jpn_Jpan``.

    Japanese and Korean without MeCab are cut into characters, as are references in another
    language if most of their letters are of a script without blanks.
    """
    code = re.split(r"[_-]", language.lower())[0]
    try:
        metric = BLEU(trg_lang=CODES.get(code, code))
    except RuntimeError:  # MeCab is not installed
        return BLEU(tokenize="char")
    text = "".join(references)
    without = 2 * len(WITHOUT_BLANKS.findall(text)) > len(LETTER.findall(text))
    if without and metric.tokenizer.signature() == BLEU.TOKENIZER_DEFAULT:
        return BLEU(tokenize="char")
    return metric


def tokens_of(lines: Sequence[str], language: str, metric: BLEU) -> list[str]:
    """Return ordinary text as Moses tokens, in which "a-b" is whole and characters are plain.

    A language that sacreBLEU, as :func:`metric_of` returns it, tokenizes otherwise than German has
    sacreBLEU's tokens.
    """
    if metric.tokenizer.signature() != BLEU.TOKENIZER_DEFAULT:
        return [str(metric.tokenizer(line)) for line in lines]
    tokenizer = MosesTokenizer(lang=language)
    return [str(tokenizer.tokenize(line, return_str=True, escape=False)) for line in lines]


def plain_tokens(lines: Sequence[str], language: str) -> list[str]:
    """Return Moses tokens without escapes and dash splits: `a @-@ b &apos;s` is `a-b 's`."""
    detokenizer = MosesDetokenizer(lang=language)
    return [DASH_SPLIT.sub("-", detokenizer.unescape_xml(line)) for line in lines]


def split_compounds(line: str) -> str:
    """Cut `a-b` into `a ##AT##-##AT## b`, in one pass from left to right.

    The pass does not look twice at a byte, so `x-y-z` with a one-letter middle is cut only once
    (`x-ö-z` twice: `ö` is two bytes). That is a flaw, and part of how the published figures were
    computed.
    """
    return COMPOUND.sub(rb"\1 ##AT##-##AT## \2", line.encode()).decode()


def compound_split_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> BLEUScore:
    """Return BLEU-4 of tokenised text as fairseq-score counts it: without smoothing, and an unknown
    word in the reference matches nothing."""
    unmatchable = [re.sub(r"(?<!\S)<unk>(?!\S)", "<<unk>>", line) for line in references]
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    score: BLEUScore = metric.corpus_score(
        [split_compounds(line) for line in hypotheses],
        [[split_compounds(line) for line in unmatchable]],
    )
    return score
