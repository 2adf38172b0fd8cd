"""CTranslate2's greedy search as a system. Imports neither torch nor fairseq.

It is run as its users run it: the padding symbol, which no trained verifier prefers, is not banned.
Which kernels it runs is for environment variables to say, where they are better than what it
chooses by itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING

from specdec_plugins.evaluation.worker import Decoded, Tokens
from specdec_plugins.machine import processor_name

if TYPE_CHECKING:
    from ctranslate2 import Translator

SAME = {"int8_float32": "int8"}
"""The second name of a precision that has two, of a verifier in float32."""

KERNELS = {
    "avx512": {"CT2_FORCE_CPU_ISA": "AVX512"},
    "mkl": {"CT2_USE_MKL": "1", "CT2_USE_EXPERIMENTAL_PACKED_GEMM": "1"},
    "unpacked": {"CT2_USE_EXPERIMENTAL_PACKED_GEMM": "0"},
}
"""Choices other than its own, which follow a precision and a colon. By itself it runs kernels for
AVX2 only, MKL on Intel's processors only, and there with weights packed."""


def check_installed() -> None:
    """
    Raises:
        ValueError: CTranslate2 is not installed.
    """
    if find_spec("ctranslate2") is None:
        raise ValueError(
            "--ctranslate2: the package ctranslate2 is not installed: pip install "
            "'specdec-plugins[bench]' (of a clone: '.[bench]'), or give --ctranslate2 without a "
            "value to do without it"
        )


def supported_precisions() -> tuple[str, ...]:
    """Those that this processor has in CTranslate2, float32 first; of equal ones one. Each by
    CTranslate2's own choice of kernels, and by the others that may be better here."""
    import ctranslate2

    found = set(ctranslate2.get_supported_compute_types("cpu"))
    names = {name for name in found if SAME.get(name) not in found}
    ordered = sorted(names, key=lambda name: (name != "float32", name))
    return tuple(f"{name}{kernels}" for name in ordered for kernels in ("", *_other_kernels()))


def _other_kernels() -> list[str]:
    processor = processor_name()
    wanted = {"avx512": "avx512", "mkl": "AMD", "unpacked": "Intel"}
    return [f":{kernels}" for kernels, part in wanted.items() if part in processor]


def check_precisions(names: Sequence[str]) -> None:
    """
    Raises:
        ValueError: one that this processor does not have, or kernels that nobody knows.
    """
    import ctranslate2

    known = ctranslate2.get_supported_compute_types("cpu")
    for name in names:
        precision, _, kernels = name.partition(":")
        if precision not in known:
            raise ValueError(
                f"--ctranslate2 {name}: must be one of those that this processor has: "
                f"{', '.join(sorted(known))}"
            )
        if kernels and kernels not in KERNELS:
            raise ValueError(
                f"--ctranslate2 {name}: after the colon must stand one of {', '.join(KERNELS)}"
            )


@dataclass
class CTranslate2Job:
    """A converted model and the batches that it is to decode."""

    model: str
    """Its folder."""
    precision: str
    """One of CTranslate2's compute types, perhaps with a colon and one of ``KERNELS``."""
    threads: int
    batches: Sequence[Sequence[Tokens]]
    most: Sequence[Sequence[int]]
    """The most tokens to put out, EOS not counted, of every sentence."""
    least: int
    """The fewest."""
    _translator: Translator = field(init=False)

    def load(self) -> None:
        """
        Raises:
            ValueError, RuntimeError: the model cannot be had in this precision.
        """
        precision, _, kernels = self.precision.partition(":")
        # Before it is imported, since it looks at them once.
        os.environ.update(KERNELS.get(kernels, {}))
        import ctranslate2

        threads = {"inter_threads": 1, "intra_threads": self.threads}
        self._translator = ctranslate2.Translator(
            self.model, device="cpu", compute_type=precision, **threads
        )

    def decode(self, batches: int, seed: int | None = None) -> Decoded:
        """Decodes as a :class:`Job` does; nothing is drawn."""
        decoded, outputs = Decoded(), []
        for batch, most in zip(self.batches[:batches], self.most):
            start = time.perf_counter()
            results = self._translator.translate_batch(
                batch,
                beam_size=1,
                # Of a batch it knows one limit: rows that have a lower one are cut below.
                max_decoding_length=max(most),
                min_decoding_length=self.least,
                max_input_length=0,
            )
            decoded.seconds.append(time.perf_counter() - start)
            outputs += [result.hypotheses[0][:limit] for result, limit in zip(results, most)]
        decoded.outputs = outputs
        return decoded
