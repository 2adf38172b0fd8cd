"""Steps compiled by OpenVINO, for CPUs. No fairseq in here."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from specdec_plugins.engines.compiled_files import CompiledFiles
from specdec_plugins.engines.compiled_step import (
    CompiledCachedStep,
    CompiledSourceStep,
    CompiledStep,
    Request,
)
from specdec_plugins.engines.openvino_core import (
    computed_precision,
    core,
    installed_openvino,
    takes,
)
from specdec_plugins.engines.sizes import PaddedSizes
from specdec_plugins.engines.step import CachedStep, Run, SourceStep, Step
from specdec_plugins.engines.traced_step import TracedStep
from specdec_plugins.engines.weight_compression import WeightCompression
from specdec_plugins.files.errors import EngineError, counted

if TYPE_CHECKING:
    from openvino import Model

logger = logging.getLogger(__name__)

OPENVINO, EAGER = "openvino", "eager"
"""Names of engines: torch is this one's substitute."""
HINTS = {"float32": "f32", "bfloat16": "bf16", "int8": "f32"}
"""OpenVINO's name of the arithmetic, by precision; with int8, weights are int8 and are multiplied
as such where the processor can."""

UNFUSED = {"SNIPPETS_MODE": "DISABLE"}
"""Of what is compiled for any sizes: no kernels that OpenVINO generates for several operations
together. In batches its attention takes longer than plain products. The option is not documented,
and may be dropped."""

MISFUSED = ("bfloat16",)
"""Precisions in which sources are compiled for any length only. On a processor with bfloat16 but
without AMX, what OpenVINO 2026.4 made of attention was wrong where all sizes were known, and right
where one of them, as that of a cache, was not. Of wrong bfloat16 products in general:
https://github.com/openvinotoolkit/openvino/issues/38256."""


class OpenVinoEngine:
    """Compiles steps for this machine's processor."""

    dtype = torch.float32
    sizes = PaddedSizes()

    def __init__(self, precision: str = "float32", fall_back: bool = False) -> None:
        """It will run steps by as many threads as torch has now.

        Args:
            precision: one of ``HINTS``; float32 takes the place of a bfloat16 that this processor
                has not.
            fall_back: a step that cannot be compiled is run by torch, and a warning says so.

        Raises:
            EngineError: OpenVINO, or what int8 takes, is not installed.
        """
        self._precision = precision = computed_precision(precision)
        """The precision of what is compiled."""
        self._runners: set[str] = set()
        """What the steps so far are run by."""
        self.fallbacks: list[str] = []
        self._compiles = False
        """Whether somebody was told that they have to wait."""
        self._openvino = installed_openvino()
        self._compress = WeightCompression() if precision == "int8" else None
        self._fall_back = fall_back
        self._threads = torch.get_num_threads()
        self._core = core()
        self._options = {
            # Otherwise OpenVINO may choose bfloat16 by itself.
            "INFERENCE_PRECISION_HINT": HINTS[precision],
            "INFERENCE_NUM_THREADS": self._threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
        }
        unfused = {option: value for option, value in UNFUSED.items() if takes(option, value)}
        self._any_sizes = {**self._options, **unfused}
        self.about = {"openvino": self._openvino.__version__, **self._any_sizes}
        if self._compress is not None:
            self.about["compression"] = self._compress.about
        # What is loaded from a file runs by as many threads as it is loaded with.
        threads = "INFERENCE_NUM_THREADS"
        lasting = {name: value for name, value in self.about.items() if name != threads}
        self.files = CompiledFiles({"precision": precision, **lasting})
        self._torch_threads = 1

    @property
    def name(self) -> str:
        """What runs the steps that there are: ``openvino``, ``eager`` where it can compile none of
        them, or both."""
        return " and ".join(sorted(self._runners, reverse=True)) or OPENVINO

    @property
    def precision(self) -> str:
        """What is computed in: of several, first that of what is compiled."""
        precisions = {OPENVINO: self._precision, EAGER: "float32"}
        used = [precisions[runner] for runner in sorted(self._runners, reverse=True)]
        return " and ".join(dict.fromkeys(used)) or self._precision

    @contextmanager
    def running(self) -> Iterator[None]:
        """While steps are run: two pools of threads on the same cores would stall each other."""
        before = torch.get_num_threads()
        torch.set_num_threads(self._torch_threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def prepare(self, step: Step) -> Run:
        """
        Raises:
            EngineError: the step cannot be compiled, and is not to be run by torch.
        """
        name = type(step).__name__
        try:
            run = self._prepared(step)
            self._runners.add(OPENVINO)
            return run
        except Exception as error:  # OpenVINO's are of several kinds, without a base of their own
            reason = _reason(error)
            if not self._fall_back:
                raise EngineError(
                    f"--engine openvino: cannot compile {name} ({reason}); use --engine eager"
                ) from error
            self.fallbacks.append(f"openvino cannot compile {name} ({reason})")
            logger.warning("%s; torch runs it", self.fallbacks[-1])
            logger.debug("openvino's own words:", exc_info=True)
            self._runners.add(EAGER)
            self._torch_threads = self._threads
            return step

    def _prepared(self, step: Step) -> Run:
        try:
            compilation = _Compilation(self, TracedStep(step))
        except Exception as error:  # whatever the step raises
            raise RuntimeError("PyTorch cannot trace it") from error
        is_kept = self.files.keeps(compilation.fingerprint)
        # Before anything is made from them: that shares their memory.
        self.files.map_weights(compilation.traced.graph)
        # The first one is made now: what OpenVINO cannot take is found out when models are loaded,
        # not when they are used. What is kept it has taken, and for sentences one at a time there
        # may be no need of it.
        first = [] if is_kept else [self.load(compilation)]

        def request(tokens: int) -> Request:
            return first.pop() if first else self.load(compilation)

        one = CompiledStep(compilation.request_for_one_row, step.transient)
        if isinstance(step, CachedStep):
            return CompiledCachedStep(CompiledStep(request, step.transient), one)
        several = CompiledStep(request, step.transient, 1)
        if isinstance(step, SourceStep) and self._precision not in MISFUSED:
            return CompiledSourceStep(several, one, step.rows_at, step.tokens_at)
        return several

    def load(self, compilation: _Compilation, tokens: int | None = None) -> Request:
        """What runs a step, compiled now or earlier.

        Args:
            tokens: of one row, how many new ones, or source tokens; None: inputs of any sizes.

        Raises:
            RuntimeError: OpenVINO cannot compile it, or what it compiled is wrong.
        """
        traced = compilation.traced
        shapes = None if tokens is None else traced.shapes(1, tokens)
        options = self._any_sizes if shapes is None else self._options
        key = self.files.path(compilation.fingerprint, shapes)
        kept = self._from_file(key, traced, options)
        if kept is not None:
            return kept
        if not self._compiles:
            self._compiles = True
            logger.warning(
                "openvino compiles the models for this processor (%s, %s), which takes "
                "from seconds to a few minutes; later runs load what is kept",
                self._precision,
                counted(self._threads, "thread"),
            )
        begin = time.perf_counter()
        model = compilation.model
        if shapes is not None:
            model = model.clone()
            model.reshape(dict(zip(model.inputs, map(self._openvino.PartialShape, shapes))))
        compiled = self._core.compile_model(model, "CPU", options)
        seconds = time.perf_counter() - begin
        logger.info("openvino compiled a step in %.1f s, for this and later runs", seconds)
        exported = compiled.export_model().getbuffer()
        request = self._imported(exported, traced, options)
        # A kernel may be wrong on this processor: once, before it is kept.
        if not traced.is_near(request.run, *((2, 5) if tokens is None else (1, tokens))):
            raise RuntimeError("what it computes is not what PyTorch does")
        self.files.save(key, exported)
        # Once more, since what comes from a file takes less memory.
        return self._from_file(key, traced, options) or request

    def _from_file(
        self, path: Path, traced: TracedStep, options: dict[str, object]
    ) -> Request | None:
        """What runs a step that was compiled earlier; None if that cannot be had."""
        kept = self.files.load(path)
        if kept is None:
            return None
        try:
            request = self._imported(kept.content, traced, options)
        except RuntimeError as error:
            logger.warning("%s: openvino cannot take it (%s); made anew", path, _reason(error))
            return None
        kept.rest()
        return request

    def _imported(
        self, compiled: memoryview, traced: TracedStep, options: dict[str, object]
    ) -> Request:
        # It reads its weights where they lie.
        given = self._openvino.Tensor(np.frombuffer(compiled, np.uint8), shared_memory=True)
        model = self._core.import_model(given, "CPU", options)
        return Request(self._openvino.Tensor, model, traced.parts, compiled)

    def converted(self, traced: TracedStep) -> Model:
        """A step as a model of OpenVINO's."""
        # It logs the whole graph, where a program such as fairseq's has logging print all.
        logging.getLogger("openvino").setLevel(logging.WARNING)
        from openvino.frontend import FrontEndManager
        from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

        frontend = FrontEndManager().load_by_framework("pytorch")
        # In place of openvino.convert_model, which tells its maker of its use. The decoder has to
        # live as long as the conversion.
        decoder = TorchScriptPythonDecoder(traced.graph)
        model = frontend.convert(frontend.load(decoder))
        return model if self._compress is None else self._compress(model)


class _Compilation:
    """A step, from which requests are made as they are needed."""

    def __init__(self, engine: OpenVinoEngine, traced: TracedStep) -> None:
        self._engine = engine
        self.traced = traced

    @cached_property
    def fingerprint(self) -> str:
        """What its files are named by: it takes as long as to read all weights."""
        return self._engine.files.fingerprint(self.traced.graph)

    @cached_property
    def model(self) -> Model:
        """The step as a model of OpenVINO's, which takes seconds, and is made only where something
        has to be compiled."""
        return self._engine.converted(self.traced)

    def request_for_one_row(self, tokens: int) -> Request:
        """For so many new tokens in one row: a tenth of a step's time goes into sizes that are not
        known before. Where that cannot be compiled, one for any sizes."""
        try:
            return self._engine.load(self, tokens)
        except RuntimeError as error:
            logger.warning("openvino cannot compile a step of one row (%s)", _reason(error))
            return self._engine.load(self)


def _reason(error: Exception) -> str:
    """What an exception says, in a line. Names of TorchScript's are not for users."""
    said = str(error).strip()
    if lacking := re.findall(r"No conversion rule found for operations: (.+)", said):
        return "it knows no " + re.sub(r"\b\w+::", "", lacking[0])
    return (said or type(error).__name__).splitlines()[-1]
