"""The texts that systems are compared on, and outputs that should be equal."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import torch

from specdec_plugins.evaluation.bleu import References
from specdec_plugins.evaluation.worker import Sentence, Tokens
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.lines import InputLines, Line
from specdec_plugins.files.output import JsonObject
from specdec_plugins.inference.text import TextCodec
from specdec_plugins.inference.translator import Translator
from specdec_plugins.jobs import progress


@dataclass(frozen=True)
class Sentences:
    """The lines with words of a text, in its order."""

    name: str
    sentences: Sequence[Sentence]
    references: References | None
    codec: TextCodec
    #: The verifier's target positions.
    positions: int

    @classmethod
    def read(
        cls, path: str, reference: str | None, max_lines: int | None, translator: Translator
    ) -> Sentences:
        """Read a text, segmented as by the translator, whose limits are those of all systems."""
        codec = translator.codec
        settings = translator.settings
        lines = read_text(path, max_lines)
        sentences = [
            Sentence(
                line,
                tokens=[codec.source[i] for i in ids[:-1]],
                longest=settings.limits.max_length(len(ids), translator.generator.positions),
            )
            for line in lines
            if (ids := codec.encode(line)) is not None
        ]
        if not sentences:
            raise InferenceError(f"--input-path {path}: holds no sentence; name a text")
        references = None
        if reference is not None:
            wanted = [line.text for line in read_text(reference, max_lines, "--reference")]
            if len(wanted) != len(lines):
                raise InferenceError(
                    f"--reference {reference}: has {len(wanted)} lines, and {path} {len(lines)}"
                )
            # Codes are of words: without a tokenizer the text has them, and so has its translation.
            of_words = settings.bpe in (None, "subword_nmt", "fastbpe")
            tokenised = settings.tokenizer is None and of_words
            of_sentences = [wanted[sentence.line.number - 1] for sentence in sentences]
            references = References(of_sentences, settings.target_lang or "", tokenised)
        return cls(path, sentences, references, codec, translator.generator.positions)

    def batches(self, size: int) -> list[Sequence[Sentence]]:
        """Return sentences in batches, the longest first, so that too large ones fail at once. At
        batch 1 they are in the order of the text."""
        ordered = self.sentences
        if size > 1:
            ordered = sorted(ordered, key=lambda sentence: -len(sentence.tokens))
        return [ordered[start : start + size] for start in range(0, len(ordered), size)]

    def joined(self, output: str | Tokens) -> str:
        """Return a translation, which may be symbols of the target dictionary, as text."""
        if isinstance(output, str):
            return output
        ids = [self.codec.target.index(symbol) for symbol in output]
        return self.codec.decode(torch.tensor(ids, dtype=torch.long))

    def describe(self) -> JsonObject:
        """Return facts by which the text is known again."""
        text = "\n".join(sentence.line.text for sentence in self.sentences)
        digest = hashlib.sha256(text.encode("utf-8"))
        return {"lines": len(self.sentences), "sha256": digest.hexdigest()}


def read_text(path: str, max_lines: int | None, flag: str = "--input-path") -> list[Line]:
    """Return the lines of a text that ``flag`` names; they must hold a sentence."""
    with InputLines.open(path) as source:
        lines = list(islice(source, max_lines))
        source.check()
    if not any(line.text.strip() for line in lines):
        raise InferenceError(f"{flag} {path}: holds no sentence; name a text")
    return lines


def decode(translator: Translator, lines: Sequence[Line], quiet: bool = False) -> list[Tokens]:
    """Return the output for each line, in tokens where the translator keeps them (``keep_bpe``)."""
    name = f"decoding ({translator.settings.policy})"
    results = translator.translate(lines)
    with progress(quiet, name, iterable=results, total=len(lines), unit="line", leave=False) as bar:
        return [translation.text.split() for translation in bar]


def gap(judge: Translator, line: Line, a: Tokens, b: Tokens) -> float:
    """Return by how many nats the verifier prefers one of two outputs where they first differ.

    ``judge`` decodes by the verifier alone.
    """
    source = judge.codec.encode(line)
    assert source is not None
    dictionary = judge.codec.target
    tokens = judge.codec.tokens
    end = dictionary[dictionary.eos()]
    common = []
    for x, y in zip([*a, end], [*b, end]):
        if x != y:
            break
        common.append(dictionary.index(x))
    begin = dictionary.eos() if tokens.begin is None else tokens.begin
    prefix = [begin, *tokens.forced, *common]
    with torch.no_grad():
        logits, _ = judge.verifier(
            source[None], torch.tensor([len(source)]), torch.tensor([prefix])
        )
    scores = logits[0, -1].log_softmax(-1)
    return abs(float(scores[dictionary.index(x)] - scores[dictionary.index(y)]))
