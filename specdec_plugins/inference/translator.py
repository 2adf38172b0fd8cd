"""Batches of lines through a generator, translations in input order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice, zip_longest
from random import Random
from threading import Lock

import torch
from fairseq.data.data_utils import collate_tokens
from torch import Tensor

from specdec_plugins.decoding.drafter_alone import DrafterAlone
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import SHORTEST
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.decoding.step_result import Hypothesis
from specdec_plugins.engines.engine import Engines
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.lines import InputLines, Line
from specdec_plugins.host.fairseq_types import Sample
from specdec_plugins.inference.beam_search import BeamSearchGenerator
from specdec_plugins.inference.ctranslate2_ar import CTranslate2Generator
from specdec_plugins.inference.settings import Settings
from specdec_plugins.inference.text import TextCodec
from specdec_plugins.inference.trace_file import SentenceTrace

Generator = SpeculativeGenerator | DrafterAlone | BeamSearchGenerator | CTranslate2Generator
"""What decodes batches, by fairseq's generator contract, and counts."""


@dataclass(frozen=True)
class Translation:
    """What became of a line."""

    text: str
    """The output; with ``--nbest`` all that is put out, with tabs between."""
    tokens: int = 0
    """Target tokens, EOS included; 0 for a blank line."""
    accepted: list[int] = field(default_factory=list)
    """Drafted tokens that each step committed; empty for a blank line and for beam search."""
    forced: int = 0
    """How many of its tokens, the first ones, the target prefix forced."""
    trace: SentenceTrace | None = None
    """What its steps did, where the settings ask for it."""


def _checked(text: object, number: int) -> str:
    """A line that a program hands over."""
    if not isinstance(text, str):
        raise TypeError(f"line {number}: is not a string, but of type {type(text).__name__}")
    text = text.removesuffix("\n").removesuffix("\r")
    if "\n" in text:
        raise ValueError(f"line {number}: holds a line feed; give its lines one by one")
    return text


def _prefixed(lines: Iterator[Line], prefixes: str | Iterable[str]) -> Iterator[Line]:
    """The lines, each with what its output is to begin with."""
    if isinstance(prefixes, str):
        yield from (replace(line, target_prefix=prefixes) for line in lines)
        return
    for line, prefix in zip_longest(lines, prefixes):
        if line is None or prefix is None:
            raise ValueError("target_prefix: give one for all lines, or as many as there are lines")
        yield replace(line, target_prefix=prefix)


class Translator:
    """A generator with its text work. Built by :func:`load_translator`."""

    def __init__(
        self,
        settings: Settings,
        generator: Generator,
        codec: TextCodec,
        runner: Engines | CTranslate2Generator,
        block_size: int | None = None,
    ) -> None:
        """
        Args:
            runner: what runs the models.
            block_size: the k in use; None without a drafter.
        """
        self.block_size = block_size
        self._runner = runner
        self.settings = settings
        self.generator = generator
        self.codec = codec
        self._lock = Lock()
        self.not_by_ctranslate2: str | None = None
        """Why our own loop decodes in place of CTranslate2, which was asked for."""

    @property
    def engine(self) -> str:
        """What runs the models."""
        return self._runner.name

    @property
    def threads(self) -> int:
        """CPU threads that decode."""
        if isinstance(self._runner, CTranslate2Generator):
            return self._runner.threads
        return torch.get_num_threads()

    @property
    def engine_fallbacks(self) -> list[str]:
        """Why eager runs steps in place of what was asked for: each reason once."""
        return self._runner.fallbacks

    @property
    def arithmetic(self) -> str:
        """What they are computed in, whatever was asked for."""
        precision, device = self._runner.precision, torch.device(self.settings.device)
        # torch's own setting, and of GPUs alone.
        rounded = device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"
        return (
            f"{precision} with TF32 products" if precision == "float32" and rounded else precision
        )

    @property
    def statistics(self) -> DecodingStatistics:
        """Counters since construction or the last warm-up."""
        return self.generator.statistics

    def warm_up(self, lines: Iterable[Line]) -> None:
        """Translate ``lines`` for nothing, then forget the statistics."""
        for _ in self.translate(lines):
            pass
        self.generator.statistics = DecodingStatistics()

    def translate(
        self,
        lines: Iterable[Line | str],
        window: int | None = None,
        known: int = 0,
        seed: int | None = None,
        target_prefix: str | Iterable[str] | None = None,
    ) -> Iterator[Translation]:
        """One translation a line, in order, each as soon as it and all before it are known.

        Args:
            lines: read as they are needed.
            window: lines to read ahead and sort by length; None is the settings' own.
            known: so many of the first window's lines are not asked for again. They keep their
                places in its batches, so that the others become what they would become with them.
            seed: what is drawn for a batch depends on this and its longest line's number, and not
                on what was drawn before; None goes on with torch's own generator.
            target_prefix: what outputs begin with, in segmented text: of all lines, or one of each
                line, where an empty one leaves it free; None is the settings' own.

        Raises:
            TypeError: ``lines`` are one string, or one of them is none.
            ValueError: one of them is several, or there are not as many prefixes.
            InferenceError: a line that cannot be decoded so, after all lines before it.
        """
        if isinstance(lines, str):
            raise TypeError("lines: is one string; give a list of them")
        source: Iterator[Line] = (
            line if isinstance(line, Line) else Line(number, _checked(line, number))
            for number, line in enumerate(lines, start=1)
        )
        if target_prefix is not None:
            source = _prefixed(source, target_prefix)
        return self._translate(source, window or self.settings.window, known, seed)

    def _translate(
        self, source: Iterator[Line], window: int, known: int, seed: int | None
    ) -> Iterator[Translation]:
        while chunk := list(islice(source, window)):
            yield from self._translate_window(chunk, known, seed)
            known = 0

    def check_input(self, lines: InputLines) -> None:
        """Check that ``--min-len`` holds for every line of an input that can be read twice."""
        limits, positions = self.settings.limits, self.generator.positions
        if not lines.is_file or limits.fault(SHORTEST, positions) is None:
            return
        with InputLines.open(str(lines.path)) as again:
            try:
                for line in again:
                    self._encode(line)
            except InferenceError as error:
                raise InferenceError(f"{lines.name}: {error}") from error

    def _encode(self, line: Line) -> Tensor | None:
        """Encode a line as the codec does."""
        ids = self.codec.encode(line)
        if ids is not None:
            try:
                self.codec.encode_prefix(line.target_prefix)
            except ValueError as error:
                raise InferenceError(f"line {line.number}: {error}") from error
            fault = self.settings.limits.fault(len(ids), self.generator.positions)
            if fault is not None:
                raise InferenceError(f"line {line.number}: {fault}")
        return ids

    def _translate_window(
        self, lines: list[Line], following: int, seed: int | None
    ) -> Iterator[Translation]:
        """The translations of a window's lines from ``following`` on."""
        encoded: list[Tensor | None] = []
        fault = None
        for line in lines:
            try:
                encoded.append(self._encode(line))
            except InferenceError as error:
                fault = error
                break
        yield from self._translate_encoded(lines[: len(encoded)], encoded, following, seed)
        if fault is not None:
            raise fault

    def _translate_encoded(
        self, lines: list[Line], encoded: list[Tensor | None], following: int, seed: int | None
    ) -> Iterator[Translation]:
        traced = self.settings.trace
        known = {
            i: Translation("", trace=SentenceTrace(lines[i].text, "", []) if traced else None)
            for i, ids in enumerate(encoded)
            if ids is None
        }
        sources = {i: ids for i, ids in enumerate(encoded) if ids is not None}
        # The longest first: a batch that is too large for the memory fails at once.
        order = sorted(sources, key=lambda i: -len(sources[i]))
        batch = self.settings.batch
        for start in range(0, len(order) + 1, batch):
            rows = order[start : start + batch]
            if rows and max(rows) >= following:
                # Of several threads one decodes: generators and engines keep state.
                with self._lock:
                    if seed is not None and self.settings.rule.draws:
                        torch.manual_seed(Random(f"{seed} {lines[rows[0]].number}").getrandbits(63))
                    results = self._decode([lines[i] for i in rows], [sources[i] for i in rows])
                known.update(zip(rows, results, strict=True))
            while following in known:
                yield known.pop(following)
                following += 1

    def _decode(self, lines: list[Line], sources: list[Tensor]) -> list[Translation]:
        dictionary = self.codec.source
        tokens = collate_tokens(sources, dictionary.pad(), left_pad=True)
        lengths = torch.tensor([len(ids) for ids in sources])
        device = self.settings.device
        sample: Sample = {
            "id": torch.arange(len(sources), device=device),
            "net_input": {"src_tokens": tokens.to(device), "src_lengths": lengths.to(device)},
        }
        forced, begin = self._forced(lines), self.codec.tokens.begin
        try:
            rows = self.generator.generate([], sample, prefix_tokens=forced, bos_token=begin)
            numbers = not any(math.isnan(row[0].get("score", 0)) for row in rows)
        except (AssertionError, IndexError, RuntimeError, ValueError):
            if numbers := self._are_numbers(sample):
                raise
        if not numbers:
            raise InferenceError(f"line {lines[0].number}: the verifier's scores are not numbers")
        return [self._translation(*pair) for pair in zip(lines, rows, strict=True)]

    def _are_numbers(self, sample: Sample) -> bool:
        """Return whether the verifier's scores of a batch's first tokens are numbers."""
        model = getattr(self.generator, "model", None)
        if isinstance(self.generator, BeamSearchGenerator):
            model = self.generator.generator.model.models[0]
        if model is None:
            return True
        inputs = sample["net_input"]
        before = torch.full_like(inputs["src_tokens"][:, :1], self.codec.target.eos())
        with torch.no_grad():
            logits, _ = model(**inputs, prev_output_tokens=before)
        return not bool(logits.isnan().any())

    def _forced(self, lines: list[Line]) -> Tensor | None:
        """``(rows, n)`` what the outputs are to begin with, then pad; None where it is nothing."""
        prefixes = [
            self.codec.encode_prefix(
                self.settings.target_prefix if line.target_prefix is None else line.target_prefix
            )
            for line in lines
        ]
        if not any(map(len, prefixes)):
            return None
        return collate_tokens(prefixes, self.codec.target.pad()).to(self.settings.device)

    def _translation(self, line: Line, hypotheses: list[Hypothesis]) -> Translation:
        several = hypotheses[: self.settings.nbest]
        text = "\t".join(self.codec.decode(hypothesis["tokens"]) for hypothesis in several)
        hypothesis = hypotheses[0]
        tokens, forced = hypothesis["tokens"], hypothesis.get("forced", 0)
        trace = None
        if "trace" in hypothesis:
            symbols = [self.codec.target[token] for token in tokens[:forced].tolist()]
            trace = SentenceTrace(line.text, text, hypothesis["trace"], symbols)
        return Translation(text, len(tokens), hypothesis.get("accepted", []), forced, trace)
