"""AR by CTranslate2, which decodes whole sentences greedily, where our own loop is not needed."""

from __future__ import annotations

import time

import torch
from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerModelBase
from torch import Tensor

from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.decoding.step_result import Hypothesis
from specdec_plugins.files.errors import EngineError
from specdec_plugins.host.fairseq_types import Sample
from specdec_plugins.inference.ctranslate2_model import is_installed, load_model, symbols
from specdec_plugins.inference.settings import CTRANSLATE2, Settings


def obstacle(settings: Settings) -> str | None:
    """What of these settings CTranslate2 cannot do, or not exactly; None if it can do all.

    Raises:
        EngineError: it is not installed.
    """
    if not is_installed():
        raise EngineError(
            f"--AR-backend {CTRANSLATE2}: is not installed; pip install "
            f"'specdec-plugins[{CTRANSLATE2}]', or leave it out"
        )
    import ctranslate2

    limits = settings.limits
    asked = {
        "a GPU": torch.device(settings.device).type != "cpu",
        f"precision {settings.precision}": settings.precision
        not in ctranslate2.get_supported_compute_types("cpu"),
        "sampling": settings.rule.draws,
        "a trace": settings.trace,
        "a target prefix": settings.target_prefix is not None,
        "a penalty for unknown words": limits.unkpen != 0,
        "a repetition penalty": limits.repetition_penalty != 1,
    }
    return next((what for what, is_asked in asked.items() if is_asked), None)


class CTranslate2Generator:
    """fairseq's generator contract, with statistics, and without scores.

    A row's limits are those of :class:`GenerationLimits`, and the padding symbol is banned: its
    output is the verifier's greedy one. A sentence's latency is that of its batch.
    """

    name = CTRANSLATE2

    def __init__(
        self,
        verifier: TransformerModelBase,
        dictionaries: tuple[Dictionary, Dictionary],
        limits: GenerationLimits,
        precision: str,
        device: str = "cpu",
        rows: int = 1,
    ) -> None:
        """
        Args:
            verifier: on the CPU, in float32, wherever CTranslate2 is to run it.
            dictionaries: the source's and the target's.
            rows: sentences of a batch, for which the number of threads is chosen.

        Raises:
            ConversionError: CTranslate2 cannot take the verifier.
        """
        self.positions = int(verifier.max_decoder_positions())
        self.statistics = DecodingStatistics()
        self._source, self._target = dictionaries
        self._model, self.threads = load_model(verifier, dictionaries, precision, device, rows)
        self.precision = precision
        self.fallbacks: list[str] = []
        self._limits = limits

    def generate(
        self,
        models: list[BaseFairseqModel],
        sample: Sample,
        prefix_tokens: Tensor | None = None,
        bos_token: int | None = None,
    ) -> list[list[Hypothesis]]:
        """Translate a batch; ``models`` is fairseq's argument, the generator has its own.

        Raises:
            ValueError: there are target prefixes.
        """
        if prefix_tokens is not None or bos_token is not None:
            raise ValueError(
                f"target_prefix: lines have their own, and {CTRANSLATE2} decodes; load the "
                'translator with Settings(ar_backend="ours")'
            )
        start = time.perf_counter()
        inputs = sample["net_input"]
        lengths = inputs["src_lengths"].tolist()
        rows = zip(inputs["src_tokens"], lengths, strict=True)
        most = [self._limits.max_length(length, self.positions) for length in lengths]
        results = self._model.translate_batch(
            [symbols(self._source, ids[-length:-1]) for ids, length in rows],
            beam_size=1,
            # It knows one limit of a batch: rows that have a lower one are cut below.
            max_decoding_length=max(most),
            min_decoding_length=self._limits.min_len,
            max_input_length=0,
            suppress_sequences=[[self._target[self._target.pad()]]],
        )
        hypotheses = [
            self._hypothesis(result.hypotheses[0][:limit])
            for result, limit in zip(results, most, strict=True)
        ]
        seconds = time.perf_counter() - start
        log, tokens = self.statistics, sum(hypothesis["steps"] for hypothesis in hypotheses)
        log.sentences += len(hypotheses)
        log.total_seconds += seconds
        for _ in hypotheses:
            log.latencies.append(seconds)
        log.committed_tokens += tokens
        log.steps += tokens  # a step is a token, as in our AR
        log.verifier_calls += tokens
        log.acceptance_histogram = [log.steps]
        return [[hypothesis] for hypothesis in hypotheses]

    def _hypothesis(self, output: list[str]) -> Hypothesis:
        ids = [*(self._target.index(symbol) for symbol in output), self._target.eos()]
        return {"tokens": torch.tensor(ids), "steps": len(ids), "accepted": [0] * len(ids)}
