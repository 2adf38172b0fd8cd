"""BLEU of a translation: sacreBLEU's, and tokenised, compound-split BLEU as in SpecDec's paper."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from sacrebleu.metrics.bleu import BLEU, BLEUScore
from sacremoses import MosesDetokenizer, MosesTokenizer

COMPOUND = re.compile(rb"(\S)-(\S)")
DASH_SPLIT = re.compile(r"(?<=\S) @-@ (?=\S)")
#: Codes of NLLB.
CODES = {"zho": "zh", "jpn": "ja", "kor": "ko", "tha": "th", "lao": "lo", "khm": "km", "mya": "my"}
#: Languages for which sacreBLEU has no tokenizer, and whose words have no blanks between them.
WITHOUT_BLANKS = ("th", "lo", "km", "my")


@dataclass(frozen=True)
class References:
    """The wanted translation, line by line."""

    lines: Sequence[str]
    language: str
    #: True if it is Moses-tokenised already, and so is the output.
    tokenised: bool = False

    def bleu(self, output: Sequence[str]) -> float:
        """Return sacreBLEU's figure of an output, given line by line."""
        return float(metric_of(self.language).corpus_score(output, [self.lines]).score)

    def tokenised_bleu(self, output: Sequence[str]) -> float:
        """Return the figure of Moses tokens with compounds split."""
        convert = plain_tokens if self.tokenised else tokens_of
        tokens, wanted = (convert(lines, self.language) for lines in (output, self.lines))
        return float(compound_split_bleu(tokens, wanted).score)

    def signature(self) -> str:
        """Return sacreBLEU's signature, which says how it counts."""
        metric = metric_of(self.language)
        metric.corpus_score(self.lines, [self.lines])
        return str(metric.get_signature())


def metric_of(language: str) -> BLEU:
    """Return sacreBLEU with its tokenizer for a language such as ``de``, ``zh_CN``, ``jpn_Jpan``.

    Languages without blanks are cut into characters, as are Japanese and Korean without MeCab.
    """
    code = re.split(r"[_-]", language.lower())[0]
    code = CODES.get(code, code)
    if code not in WITHOUT_BLANKS:
        with suppress(RuntimeError):  # MeCab is not installed
            return BLEU(trg_lang=code)
    return BLEU(tokenize="char")


def tokens_of(lines: Sequence[str], language: str) -> list[str]:
    """Return ordinary text as Moses tokens, in which "a-b" is whole and characters are plain.

    A language that sacreBLEU tokenizes otherwise than German has sacreBLEU's tokens.
    """
    metric = metric_of(language)
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
