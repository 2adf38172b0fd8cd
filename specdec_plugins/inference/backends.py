"""Generators that decode a batch as a whole: fairseq's beam search, the baseline, and CTranslate2.

CTranslate2's own converter would open the checkpoint itself, and cannot: it gets our model, which
has been checked, anew in every process (a second).
"""

from __future__ import annotations

import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerModelBase
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks import FairseqTask
from torch import Tensor

from specdec_plugins.checkpoints.multilingual import LanguageTokens
from specdec_plugins.decoding.build import build_generator, made_up
from specdec_plugins.decoding.fairseq_search import EngineModel
from specdec_plugins.decoding.kernels import wait_for
from specdec_plugins.decoding.limits import GenerationLimits, check_stock_search
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.decoding.step_result import Hypothesis
from specdec_plugins.engines.engine import Engine, Engines
from specdec_plugins.files.errors import ConversionError
from specdec_plugins.host.fairseq_types import Sample
from specdec_plugins.inference.settings import CTRANSLATE2, Settings
from specdec_plugins.inference.text import TextCodec

if TYPE_CHECKING:
    from ctranslate2 import Translator

#: Made-up sentences on which a converted model is checked.
CHECKED = 8
#: Difference of a token's log-probability; rounding in float32 stays below a hundredth of it.
TOLERATED = 1e-3


@dataclass(frozen=True)
class Backend:
    """A backend as reports name it, like :class:`Engines`."""

    name: str
    precision: str
    fallbacks: tuple[str, ...] = ()


class BatchGenerator:
    """fairseq's generator contract, with statistics.

    A step is a token of the best hypothesis; nothing is drafted. A sentence's latency is that of
    its batch.
    """

    def __init__(self, positions: int, engines: Backend | Engines) -> None:
        self.positions = positions
        self.engines = engines
        self.statistics = DecodingStatistics()

    def generate(
        self,
        models: list[BaseFairseqModel],
        sample: Sample,
        prefix_tokens: Tensor | None = None,
        bos_token: int | None = None,
    ) -> list[list[Hypothesis]]:
        """Translate a batch; ``models`` is fairseq's argument, the generator has its own."""
        start = time.perf_counter()
        rows = self.decode(sample, prefix_tokens, bos_token)
        wait_for(sample["net_input"]["src_tokens"].device)
        seconds = time.perf_counter() - start
        tokens = sum(len(row[0]["tokens"]) for row in rows)
        forced = sum(row[0].get("forced", 0) for row in rows)
        self.statistics.undrafted(len(rows), tokens, forced, seconds)
        return rows

    def decode(
        self, sample: Sample, prefix_tokens: Tensor | None, bos_token: int | None
    ) -> list[list[Hypothesis]]:
        """Translate a batch, neither timed nor counted."""
        raise NotImplementedError


class BeamSearchGenerator(BatchGenerator):
    """A stock ``SequenceGenerator``, whose output is left alone.

    All sentences of a batch have the length limit of the longest one.
    """

    def __init__(self, generator: SequenceGenerator, engines: Backend | Engines) -> None:
        super().__init__(int(generator.model.max_decoder_positions()), engines)
        self._generator = generator

    def decode(
        self, sample: Sample, prefix_tokens: Tensor | None, bos_token: int | None
    ) -> list[list[Hypothesis]]:
        hypotheses: list[list[Hypothesis]] = self._generator.generate(
            [],
            sample,
            prefix_tokens=prefix_tokens,
            bos_token=bos_token,
            constraints=sample.get("constraints"),
        )
        if prefix_tokens is not None:
            is_prefix = prefix_tokens.ne(self._generator.pad)
            for (best, *_), length in zip(hypotheses, is_prefix.sum(1).tolist(), strict=True):
                # The maximum length may cut the prefix.
                best["forced"] = min(length, len(best["tokens"]) - 1)
        return hypotheses


def build_beam_search(
    settings: Settings, task: FairseqTask, verifiers: list[TransformerModelBase], engine: Engine
) -> BeamSearchGenerator:
    """Return fairseq's search: over our engine, or stock, as fairseq-generate prepares it."""
    limits = settings.limits
    options = Namespace(
        **{**vars(limits), **settings.rule.values, **settings.search},
        beam=settings.beams,
        print_alignment=settings.print_alignment,
        unnormalized=not limits.normalize_scores,
    )
    # Our own task would let our engine answer in any case.
    build = partial(FairseqTask.build_generator, task)
    check_stock_search(vars(options))
    if not settings.stock_model:
        model = EngineModel(verifiers, task.target_dictionary.pad(), engine)
        return BeamSearchGenerator(build(model, options), Engines.both(engine))
    for verifier in verifiers:
        verifier.prepare_for_inference_(Namespace(generation=options))
    return BeamSearchGenerator(build(verifiers, options), Backend("eager", settings.precision))


def obstacle(settings: Settings) -> str | None:
    """Return why CTranslate2 cannot decode with these settings, or not exactly; None if it can."""
    if find_spec(CTRANSLATE2) is None:
        return f"it is not installed (pip install 'specdec-plugins[{CTRANSLATE2}]')"
    return next((f"it cannot do {wanted}" for wanted in _beyond_ctranslate2(settings)), None)


def _beyond_ctranslate2(settings: Settings) -> Iterator[str]:
    """Yield what settings ask for that CTranslate2 has not, or not as fairseq has it."""
    import ctranslate2

    limits = settings.limits
    if torch.device(settings.device).type != "cpu":
        yield "a GPU"
    if settings.precision not in ctranslate2.get_supported_compute_types("cpu"):
        yield f"precision {settings.precision}"
    if settings.rule.draws:
        yield "sampling"
    if settings.trace:
        yield "a trace"
    if settings.target_prefix is not None:
        yield "a target prefix"
    if limits.unkpen != 0:
        yield "a penalty for unknown words"
    if limits.repetition_penalty != 1:
        yield "a repetition penalty"
    yield from _beyond_its_beams(settings)


def _beyond_its_beams(settings: Settings) -> Iterator[str]:
    limits = settings.limits
    if settings.beams > 1 and not limits.normalize_scores:
        yield "scores that are not normalised"
    if settings.beams > 1 and limits.temperature != 1:
        yield "a temperature"
    if any(settings.search.values()):
        yield "options of fairseq's search"
    if settings.print_alignment is not None:
        yield "an alignment"
    if settings.ensemble:
        yield "an ensemble"


class CTranslate2Generator(BatchGenerator):
    """Greedy or beam search of whole sentences, without scores.

    A row's limits are those of :class:`GenerationLimits`, and the padding symbol is banned: its
    greedy output is the verifier's.
    """

    def __init__(
        self,
        verifier: TransformerModelBase,
        codec: TextCodec,
        limits: GenerationLimits,
        precision: str,
        device: str = "cpu",
        beams: int = 1,
    ) -> None:
        """Convert the model, check it, and open it in a precision on a device.

        Args:
            verifier: on the CPU, in float32, wherever CTranslate2 is to run it.
            codec: with the verifier's dictionaries.
        """
        super().__init__(int(verifier.max_decoder_positions()), Backend(CTRANSLATE2, precision))
        self._limits = limits
        self._codec = codec
        self._beams = beams
        with tempfile.TemporaryDirectory(prefix="specdec-") as folder:
            path = Path(folder) / "model"
            convert_checked(verifier, codec, path)
            self._model = _open(path, precision, device)

    def decode(
        self, sample: Sample, prefix_tokens: Tensor | None, bos_token: int | None
    ) -> list[list[Hypothesis]]:
        if prefix_tokens is not None:
            raise ValueError(f'target_prefix: {CTRANSLATE2} has none; give ar_backend="ours"')
        net_input = sample["net_input"]
        lengths = net_input["src_lengths"].tolist()
        rows = zip(net_input["src_tokens"], lengths, strict=True)
        longest = self._limits.max_lengths(net_input, lengths, self.positions)
        results = self._model.translate_batch(
            [symbols(self._codec.source, ids[-length:-1]) for ids, length in rows],
            beam_size=self._beams,
            num_hypotheses=self._beams,
            length_penalty=self._limits.lenpen,
            # It knows one limit of a batch, at least 1: rows that have a lower one are cut below.
            max_decoding_length=max(1, *longest),
            min_decoding_length=self._limits.min_len,
            max_input_length=0,
            suppress_sequences=[[self._codec.target[self._codec.target.pad()]]],
        )
        return [
            [self._hypothesis(output[:limit]) for output in result.hypotheses]
            for result, limit in zip(results, longest, strict=True)
        ]

    def _hypothesis(self, words: list[str]) -> Hypothesis:
        target = self._codec.target
        ids = [*map(target.index, words), target.eos()]
        return {"tokens": torch.tensor(ids), "steps": len(ids), "accepted": [0] * len(ids)}


def _open(path: Path, precision: str, device: str = "cpu") -> Translator:
    import ctranslate2

    return ctranslate2.Translator(
        str(path),
        device=device,
        compute_type=precision,
        inter_threads=1,
        intra_threads=torch.get_num_threads(),
    )


def _check(model: Translator, verifier: TransformerModelBase, codec: TextCodec) -> None:
    """Compare the scores that both give to our AR's output for made-up sentences."""
    longest = int(min(verifier.encoder.max_positions(), verifier.decoder.max_positions()))
    source = codec.source
    target = codec.target
    batch = made_up(source, CHECKED, min(12, longest))
    limits = GenerationLimits(max_len_b=min(16, longest - 1))
    rows = build_generator(verifier, None, target, limits=limits).generate([], batch)
    sentences = [symbols(source, ids[:-1]) for ids in batch["net_input"]["src_tokens"]]
    outputs = [symbols(target, best[0]["tokens"][:-1]) for best in rows]
    scored = model.score_batch(sentences, outputs, max_input_length=0)
    for row, result in zip(rows, scored, strict=True):
        if not torch.allclose(
            row[0]["positional_scores"], torch.tensor(result.log_probs), rtol=0, atol=TOLERATED
        ):
            raise ConversionError("CTranslate2 computes other scores with this verifier")


def symbols(dictionary: Dictionary, ids: Tensor) -> list[str]:
    """Return the symbols of ``(length,)`` ids."""
    return [dictionary[i] for i in ids.tolist()]


def convert_checked(verifier: TransformerModelBase, codec: TextCodec, folder: Path) -> None:
    """Write the model as :func:`convert_verifier`, and check that it scores as the verifier."""
    convert_verifier(verifier, codec, folder)
    _check(_open(folder, "float32"), verifier, codec)


def convert_verifier(verifier: TransformerModelBase, codec: TextCodec, folder: Path) -> None:
    """Write the model, in float32.

    Args:
        verifier: on the CPU, in float32, without gradients.
        codec: with its dictionaries, and without language tokens, which CTranslate2 does not put
            where fairseq does.
        folder: is made; must not be there.
    """
    from ctranslate2.converters import fairseq as converter
    from ctranslate2.specs import TransformerSpec

    if codec.tokens != LanguageTokens():
        raise ConversionError("it does not support language tokens, or BOS before a source")
    cfg = verifier.cfg
    encoder = verifier.encoder
    decoder = verifier.decoder
    try:
        # It knows one form of both sides: a verifier whose sides differ fails when it is checked.
        spec = TransformerSpec.from_config(
            (len(encoder.layers), len(decoder.layers)),
            cfg.decoder.attention_heads,
            pre_norm=cfg.decoder.normalize_before,
            activation=converter._SUPPORTED_ACTIVATIONS[cfg.activation_fn],
            layernorm_embedding=decoder.layernorm_embedding is not None,
        )
        converter.set_transformer_encoder(spec.encoder, encoder)
        converter.set_transformer_decoder(spec.decoder, decoder)
        spec.register_source_vocabulary(list(codec.source.symbols))
        spec.register_target_vocabulary(list(codec.target.symbols))
        # fairseq's sources end with EOS, and its targets begin with it.
        spec.config.add_source_eos = True
        spec.config.decoder_start_token = spec.config.eos_token
        spec.validate()
        spec.optimize()
        folder.mkdir()
        spec.save(str(folder))
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # unknown activation, …
        raise ConversionError(f"CTranslate2 cannot take this verifier ({error})") from error
