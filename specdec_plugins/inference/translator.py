"""Batches of lines through a generator, translations in input order."""

from __future__ import annotations

import logging
import math
import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from random import Random
from threading import Lock, get_ident

import torch
from fairseq.data.data_utils import collate_tokens
from fairseq.models.transformer import TransformerModelBase
from fairseq.token_generation_constraints import pack_constraints
from torch import Tensor

from specdec_plugins.decoding import step_result
from specdec_plugins.decoding.drafter_alone import DrafterAlone
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import MAX_LENGTHS
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.decoding.target_prefix import FREE
from specdec_plugins.decoding.text_drafting import DRAFTS
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.lines import Line, without_surrogates
from specdec_plugins.host.fairseq_types import Sample
from specdec_plugins.inference.backends import BatchGenerator, BeamSearchGenerator
from specdec_plugins.inference.documents import Document, plain_document
from specdec_plugins.inference.growth import GrowingText, Piece
from specdec_plugins.inference.hypothesis import Hypothesis
from specdec_plugins.inference.settings import Settings
from specdec_plugins.inference.text import TextCodec
from specdec_plugins.inference.trace_page import SentenceTrace

logger = logging.getLogger(__name__)

#: Decodes batches, by fairseq's generator contract, and counts.
Generator = SpeculativeGenerator | DrafterAlone | BatchGenerator
NOTHING = torch.empty(0, dtype=torch.long)


@dataclass(frozen=True)
class Translation:
    """The translation of a line."""

    #: The output; of several, the best.
    text: str
    #: Symbols of the target dictionary, EOS included; empty for a blank line.
    tokens: list[str] = field(default_factory=list)
    #: fairseq's score: the mean log-probability of the tokens, by default; None of a blank line, of
    #: a line whose sentences are split, and by CTranslate2.
    score: float | None = None
    #: Drafted tokens that each step committed; empty for a blank line and for beam search.
    accepted: list[int] = field(default_factory=list)
    #: The number of tokens, the first ones, that the target prefix forced; of split sentences the
    #: sum.
    forced: int = 0
    #: True if its end may be missing: it is as long as the limit lets it be, or the source was cut.
    limited: bool = False
    #: True if the model read or wrote the unknown symbol: a dictionary lacks a word.
    unknown: bool = False
    #: The record of its steps, where the settings ask for it.
    trace: SentenceTrace | None = None
    #: Drafted tokens that each step verified; empty where ``accepted`` is.
    verified: list[int] = field(default_factory=list)
    #: The ``nbest`` outputs of the settings, the best first; empty for a blank line, and where
    #: sentences are split.
    hypotheses: list[Hypothesis] = field(default_factory=list)

    @property
    def line(self) -> str:
        """All of them in one line, with tabs between; else the text."""
        return "\t".join(hypothesis.text for hypothesis in self.hypotheses) or self.text


@dataclass
class _Item:
    """A line on its way: encoded, later translated; a blank one is translated at once."""

    line: Line
    translation: Translation | InferenceError | None = None
    source: Tensor = NOTHING
    #: ``(n,)`` tokens that the output is to begin with.
    prefix: Tensor = NOTHING
    #: ``(n,)`` tokens, EOS included, of a text that the output may resemble.
    draft: Tensor = NOTHING
    #: ``(n,)`` tokens, each of which the output is to have, one after another.
    constraints: list[Tensor] = field(default_factory=list)
    #: The largest number of tokens of its output, EOS not counted.
    longest: int = 0
    #: True if the source is longer than the encoder has positions for.
    cut: bool = False
    #: Its output as it grows, where somebody looks at it.
    growing: GrowingText | None = None


class Translator:
    """A generator with its text work. Built by :func:`load_translator`."""

    def __init__(self, settings: Settings, generator: Generator, codec: TextCodec) -> None:
        """Put the parts together; the settings' block size is the one in use, or None."""
        self.settings = settings
        self.generator = generator
        self.codec = codec
        self._constrained = "constraints" in settings.search_options
        #: The reason why our own loop decodes in place of CTranslate2, which was asked for.
        self.not_by_ctranslate2: str | None = None
        self._commits = step_result.CommitObserver()
        if not isinstance(generator, BatchGenerator):
            generator.observers.append(self._commits)
        self._lock = Lock()
        #: The thread that has the lock.
        self._thread: int | None = None

    @property
    def engine(self) -> str:
        """The name of the engine or backend that runs the models."""
        return self.generator.engines.name

    @property
    def precision(self) -> str:
        """The precision of the arithmetic, whatever was asked for."""
        return self.generator.engines.precision

    @property
    def verifier(self) -> TransformerModelBase:
        """The verifier of our own loop, which must be the generator."""
        assert isinstance(self.generator, SpeculativeGenerator)
        return self.generator.model

    @property
    def statistics(self) -> DecodingStatistics:
        """Counters since construction."""
        return self.generator.statistics

    def in_batches_of(self, sentences: int) -> None:
        """Decode so many sentences together from now on."""
        self.settings = replace(self.settings, batch=sentences)

    def translate(
        self,
        lines: Iterable[Line | str],
        window: int | None = None,
        seed: int | None = None,
        target_prefix: str | Iterable[str] | None = None,
        drafts: Iterable[str] | None = None,
    ) -> Iterator[Translation]:
        """Yield one translation a line, in order, each as soon as it and all before it are known.

        Args:
            lines: read as they are needed.
            window: lines to read ahead and sort by length; None is the settings' own.
            seed: draws for a batch depend on this and its longest line's number, and not on earlier
                draws; None goes on with torch's own generator.
            target_prefix: the beginning of outputs, in segmented text: of all lines, or one a line,
                where an empty one leaves it free; None is the settings' own.
            drafts: a text for each line that its translation may resemble; the settings' ``drafts``
                must be ``texts``.

        Raises:
            TypeError: ``lines`` is one string.
            ValueError: there are not as many prefixes or drafts as lines.
            InferenceError: a line that cannot be decoded so, after all lines before it.
        """
        source = _numbered(lines)
        if isinstance(target_prefix, str):
            source = (replace(line, target_prefix=target_prefix) for line in source)
        elif target_prefix is not None:
            source = (
                replace(line, target_prefix=prefix)
                for line, prefix in zip(source, target_prefix, strict=True)
            )
        if drafts is not None:
            if self.settings.drafts_path is None:
                raise ValueError("drafts: load the translator with Settings(drafts='texts', ...)")
            source = (
                replace(line, draft=draft) for line, draft in zip(source, drafts, strict=True)
            )
        size = window or self.settings.window
        windows = iter(lambda: list(islice(source, size)), [])
        if self.settings.split_sentences:
            return self._translate_sentences(windows, seed)
        return (line for results in self._translate(windows, seed) for line in results)

    def translate_batch(
        self,
        lines: Sequence[Line | str],
        seed: int | None = None,
        on_piece: Callable[[int, Piece], object] | None = None,
        max_lengths: Iterable[int | None] | None = None,
    ) -> list[Translation | InferenceError]:
        """Return the translation of each line, or the error that it alone has.

        Args:
            seed: see :meth:`translate`.
            on_piece: is called with the index of a line and a piece of its output as soon as a step
                has committed it; the pieces of a line together are its text. An ``InferenceError``
                that it raises ends this line alone, whose result it is; whatever else it raises
                ends all lines that have not ended, and is raised here (an ``AssertionError`` or
                ``IndexError``, which would be taken for the model's, as a ``RuntimeError``). A line
                has one piece where no steps are seen: by the writer, CTranslate2, fairseq's search.
            max_lengths: the largest number of tokens of each line's output, EOS not counted; None
                where the settings' own rule holds.

        Raises:
            TypeError: ``lines`` is one string.
            ValueError: there are not as many lengths as lines, or beam search would need several;
                the settings split lines into sentences, which :meth:`translate` does.
        """
        if self.settings.split_sentences:
            raise ValueError("split_sentences: translate_batch takes whole lines; use translate")
        source = _numbered(lines)
        if max_lengths is not None:
            source = (
                replace(line, max_length=length)
                for line, length in zip(source, max_lengths, strict=True)
            )
        items = [self._encode(line) for line in source]
        if on_piece is not None:
            for index, item in enumerate(items):
                item.growing = GrowingText(
                    self.codec, partial(on_piece, index), item.prefix.tolist()
                )
        return list(self._translate_window(items, seed))

    def _translate(
        self, windows: Iterable[list[Line]], seed: int | None
    ) -> Iterator[Iterator[Translation]]:
        """Yield the translations of each window."""
        warned = False
        for lines in windows:
            items: list[_Item] = []
            for line in lines:
                item = self._encode(line)
                items.append(item)
                if not warned and self.codec.source.unk() in item.source:
                    warned = True
                    logger.warning("%s", self.codec.unknown_word(line))
            yield _good(self._translate_window(items, seed))

    def _translate_sentences(
        self, windows: Iterable[list[Line]], seed: int | None
    ) -> Iterator[Translation]:
        documents: list[Document] = []

        def sentences() -> Iterator[list[Line]]:
            for lines in windows:
                documents[:] = (
                    plain_document(line.text, str(self.settings.source_lang)) for line in lines
                )
                yield [
                    replace(line, text=text, sentence=number)
                    for line, document in zip(lines, documents)
                    for number, text in enumerate(document.sentences)
                ]

        for results in self._translate(sentences(), seed):
            for document in documents:
                yield _joined(document, list(islice(results, len(document.sentences))))

    def _encode(self, line: Line) -> _Item:
        """Return the line with its tokens, or with the reason why it cannot be decoded."""
        source, *words = line.text.split("\t") if self._constrained else [line.text]
        ids, cut = self.codec.encode_or_cut(replace(line, text=source))
        if ids is None:
            trace = SentenceTrace(line.text, "", []) if self.settings.trace else None
            return _Item(line, Translation("", trace=trace))
        text = self.settings.target_prefix if line.target_prefix is None else line.target_prefix
        limits = self.settings.limits
        if line.max_length is not None and self.settings.by_fairseq:
            raise ValueError("max_lengths: beam search and strategy fairseq have one for all lines")
        try:
            if line.max_length is not None:
                limits = replace(limits, max_len_a=0.0, max_len_b=operator.index(line.max_length))
            prefix = self.codec.encode_prefix(text)
            if fault := limits.fault(len(ids), self.generator.positions):
                raise ValueError(fault)
        except (TypeError, ValueError) as error:
            return _Item(line, InferenceError(f"line {line.number}: {error}"))
        longest = limits.max_length(len(ids), self.generator.positions)
        return _Item(
            line,
            source=ids,
            prefix=prefix,
            draft=self.codec.encode_draft(line.draft or "", longest + 1),
            constraints=[self.codec.encode_constraint(text) for text in words],
            longest=longest,
            cut=cut,
        )

    def _translate_window(
        self, items: list[_Item], seed: int | None
    ) -> Iterator[Translation | InferenceError]:
        """Yield the results of encoded lines, in order."""
        waiting = deque(items)
        order = [item for item in items if item.translation is None]
        # The longest first: a batch that is too large for the memory fails at once.
        order.sort(key=lambda item: -len(item.source))
        batch = self.settings.batch
        generator = self.generator
        forced = self.codec.tokens.begin is not None or any(len(item.prefix) for item in order)
        if isinstance(generator, SpeculativeGenerator) and generator.refills and not forced:
            generator.rows = batch
            batch = max(len(order), 1)
        for start in range(0, len(order) + 1, batch):
            if rows := order[start : start + batch]:
                if self._thread == get_ident():
                    raise RuntimeError("on_piece: the translator is at work; use another one")
                # Threads take turns: generators and engines keep state.
                with self._lock:
                    self._thread = get_ident()
                    if seed is not None and self.settings.rule.draws:
                        first = rows[0].line
                        draw = Random(f"{seed} {first.number} {first.sentence}")
                        torch.manual_seed(draw.getrandbits(63))
                    try:
                        self._decode(rows)
                    except InferenceError as error:
                        for item in rows:
                            item.translation = error
                    finally:
                        self._thread = None
            while waiting and (translation := waiting[0].translation) is not None:
                yield translation
                waiting.popleft()

    def _decode(self, items: list[_Item]) -> None:
        """Translate a batch."""
        device = self.settings.device
        pad = self.codec.target.pad()
        tokens = collate_tokens(
            [item.source for item in items], self.codec.source.pad(), left_pad=True
        )
        lengths = torch.tensor([len(item.source) for item in items])
        sample: Sample = {
            "id": torch.arange(len(items), device=device),
            "net_input": {"src_tokens": tokens.to(device), "src_lengths": lengths.to(device)},
        }
        if not self.settings.by_fairseq:  # whose search has one limit for a batch
            longest = torch.tensor([item.longest for item in items])
            sample["net_input"][MAX_LENGTHS] = longest.to(device)
        if self.settings.drafts_path is not None:
            drafts = collate_tokens([item.draft for item in items], pad)
            sample["net_input"][DRAFTS] = drafts.to(device)
        if self._constrained:
            sample["constraints"] = pack_constraints([item.constraints for item in items])
        forced = None
        if any(len(item.prefix) for item in items):
            forced = collate_tokens([item.prefix for item in items], pad).to(device)
            if not isinstance(self.generator, BatchGenerator):
                # A row's minimum length is not to depend on the prefixes of others.
                lengths = torch.tensor([len(item.prefix) for item in items])
                sample["net_input"][FREE] = lengths.to(device)
        fault = f"line {items[0].line.number}, or its batch: a model's scores are not numbers"
        self._commits.follow([item.growing.commit for item in items if item.growing is not None])
        try:
            rows = self.generator.generate(
                [], sample, prefix_tokens=forced, bos_token=self.codec.tokens.begin
            )
        except (AssertionError, IndexError) as error:  # of NaN
            if self.settings.print_alignment is not None:
                fault += ", or a beam has fewer outputs than fairseq can align"
            raise InferenceError(f"{fault} ({error})") from error
        if any(math.isnan(row[0].get("score", 0)) for row in rows):
            raise InferenceError(fault)
        limit = 0
        if isinstance(self.generator, BeamSearchGenerator):  # it has one limit for a batch
            limit = max(item.longest for item in items)
        for item, hypotheses in zip(items, rows, strict=True):
            item.translation = self._translation(item, hypotheses, max(limit, item.longest))
            if item.growing is not None:
                item.growing.end(item.translation.text)
                item.translation = item.growing.fault or item.translation

    def _translation(
        self, item: _Item, hypotheses: list[step_result.Hypothesis], longest: int
    ) -> Translation:
        several = [self._hypothesis(output) for output in hypotheses[: self.settings.nbest]]
        best = several[0]
        output = hypotheses[0]
        forced = output.get("forced", 0)
        trace = None
        if "trace" in output:
            trace = SentenceTrace(
                item.line.text,
                best.text,
                output["trace"],
                best.tokens[:forced],
                self.settings.rule.draws,
            )
        return Translation(
            best.text,
            best.tokens,
            best.score,
            accepted=output.get("accepted", []),
            forced=forced,
            limited=item.cut or len(best.tokens) > longest,
            unknown=self.codec.source.unk() in item.source
            or self.codec.target.unk() in output["tokens"],
            trace=trace,
            verified=output.get("verified", []),
            hypotheses=several,
        )

    def _hypothesis(self, output: step_result.Hypothesis) -> Hypothesis:
        alignment = list(output.get("alignment", []))
        if self.settings.print_alignment == "soft":
            alignment = [[float(part) for part in row] for row in alignment]
        return Hypothesis(
            self.codec.decode(output["tokens"]),
            [self.codec.target[token] for token in output["tokens"].tolist()],
            float(output["score"]) if "score" in output else None,
            output.get("positional_scores", NOTHING).tolist(),
            alignment,
        )


def _numbered(lines: Iterable[Line | str]) -> Iterator[Line]:
    """Return lines, the strings among them by their number from 1."""
    if isinstance(lines, str):
        raise TypeError("lines: is one string; give a list of them")
    return (
        line if isinstance(line, Line) else Line(number, without_surrogates(line))
        for number, line in enumerate(lines, start=1)
    )


def _good(results: Iterable[Translation | InferenceError]) -> Iterator[Translation]:
    """Yield translations; raise the first error in their place."""
    for result in results:
        if isinstance(result, InferenceError):
            raise result
        yield result


def _joined(document: Document, sentences: list[Translation]) -> Translation:
    """Return the translation of a line, made of those of its sentences; it has no score."""
    return Translation(
        document.joined([sentence.text for sentence in sentences]),
        [token for sentence in sentences for token in sentence.tokens],
        accepted=[count for sentence in sentences for count in sentence.accepted],
        forced=sum(sentence.forced for sentence in sentences),
        limited=any(sentence.limited for sentence in sentences),
        unknown=any(sentence.unknown for sentence in sentences),
        verified=[count for sentence in sentences for count in sentence.verified],
    )
