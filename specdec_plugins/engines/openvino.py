"""Steps compiled by OpenVINO, for CPUs. No fairseq in here."""

from __future__ import annotations

import logging
import mmap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from specdec_plugins.engines.compiled_files import Buffer, CompiledFiles
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
"""Names of engines: PyTorch is this one's substitute."""
HINTS = {"float32": "f32", "bfloat16": "bf16", "int8": "f32"}
"""OpenVINO's names of the arithmetic, by precision."""
UNFUSED = {"SNIPPETS_MODE": "DISABLE"}
"""Options of models for any sizes: no generated kernels for several operations together, whose
attention in batches is slower than plain products. Undocumented, so it may be dropped."""
MISFUSED = ("bfloat16",)
"""Precisions in which sources are compiled for any length only.

On a processor with bfloat16 but without AMX, OpenVINO 2026.4 computed attention wrongly where all
sizes were known. See also https://github.com/openvinotoolkit/openvino/issues/38256."""


class OpenVinoEngine:
    """Compiles steps for this machine's processor."""

    dtype = torch.float32
    sizes = PaddedSizes()

    def __init__(self, precision: str = "float32", fall_back: bool = False) -> None:
        """Prepare to run steps by as many threads as torch has now.

        Args:
            precision: one of ``HINTS``; without bfloat16 on this processor it becomes float32.
            fall_back: let PyTorch run a step that cannot be compiled, with a warning.

        Raises:
            EngineError: OpenVINO, or the library that int8 needs, is not installed.
        """
        self._openvino = installed_openvino()
        self._precision = precision = computed_precision(precision)
        self._runners: set[str] = set()
        """The engines that run the steps so far."""
        self.fallbacks: list[str] = []
        self._warned = False
        """Whether the user knows that compiling takes time."""
        self._compress = WeightCompression() if precision == "int8" else None
        self._fall_back = fall_back
        self._threads = torch.get_num_threads()
        self._core = core()
        lasting = {
            # Otherwise OpenVINO may choose bfloat16 by itself.
            "INFERENCE_PRECISION_HINT": HINTS[precision],
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
        }
        # A model from a file runs by as many threads as it is loaded with.
        self._options = {**lasting, "INFERENCE_NUM_THREADS": self._threads}
        unfused = {option: value for option, value in UNFUSED.items() if takes(option, value)}
        self._any_sizes = {**self._options, **unfused}
        versions = {"openvino": self._openvino.__version__}
        if self._compress is not None:
            versions["compression"] = self._compress.about
        self.about: dict[str, object] = {**versions, **self._any_sizes}
        self.files = CompiledFiles({"precision": precision, **versions, **lasting, **unfused})
        self._torch_threads = 1

    @property
    def name(self) -> str:
        """The engines that run the steps so far: ``openvino``, ``eager`` or both."""
        return " and ".join(sorted(self._runners, reverse=True)) or OPENVINO

    @property
    def precision(self) -> str:
        """The precision of the arithmetic, that of compiled steps first."""
        precisions = {OPENVINO: self._precision, EAGER: "float32"}
        used = [precisions[runner] for runner in sorted(self._runners, reverse=True)]
        return " and ".join(dict.fromkeys(used)) or self._precision

    @contextmanager
    def running(self) -> Iterator[None]:
        """Leave the cores to OpenVINO: two pools of threads would stall each other."""
        before = torch.get_num_threads()
        torch.set_num_threads(self._torch_threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def prepare(self, step: Step) -> Run:
        """Compile a step, or load it if an earlier run did.

        Raises:
            EngineError: the step cannot be compiled, and PyTorch is not to run it.
        """
        name = type(step).__name__
        try:
            run = self._prepared(step)
            self._runners.add(OPENVINO)
            return run
        except Exception as error:  # OpenVINO's have no base class of their own
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
        is_stored = self.files.path(compilation.fingerprint).exists()
        # Before a model is made of the weights, which then shares their memory.
        self.files.map_weights(compilation.traced.graph)
        # Compile a new step at once, so that a failure shows while models are loaded. A stored one
        # has compiled before, and single sentences may not need it.
        first = [] if is_stored else [self.load(compilation)]

        def request(tokens: int) -> Request:
            return first.pop() if first else self.load(compilation)

        single = CompiledStep(compilation.request_for_one_row, step.transient)
        if isinstance(step, CachedStep):
            return CompiledCachedStep(CompiledStep(request, step.transient), single)
        several = CompiledStep(request, step.transient, 1)
        if isinstance(step, SourceStep) and self._precision not in MISFUSED:
            return CompiledSourceStep(several, single, step.rows_at, step.tokens_at)
        return several

    def load(self, compilation: _Compilation, tokens: int | None = None) -> Request:
        """Return a request of a compiled step; compile it unless an earlier run did.

        Args:
            tokens: new tokens, or source tokens, of a single row; None: inputs of any sizes.

        Raises:
            RuntimeError: OpenVINO cannot compile the step, or computes something else.
        """
        traced = compilation.traced
        shapes = None if tokens is None else traced.shapes(1, tokens)
        options = self._any_sizes if shapes is None else self._options
        path = self.files.path(compilation.fingerprint, shapes)
        stored = self.files.load(path)
        if stored is not None:
            try:
                return self._imported(stored, traced, options)
            except RuntimeError as error:
                logger.warning("%s: openvino cannot take it (%s); made anew", path, _reason(error))
        if not self._warned:
            self._warned = True
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
        exported = self._core.compile_model(model, "CPU", options).export_model().getbuffer()
        seconds = time.perf_counter() - begin
        logger.info("openvino compiled a step in %.1f s, for this and later runs", seconds)
        request = self._imported(exported, traced, options)
        # A kernel may be wrong on this processor.
        if not traced.is_near(request.run, *((2, 5) if tokens is None else (1, tokens))):
            raise RuntimeError("what it computes is not what PyTorch does")
        stored = self.files.save(path, exported)
        # A model that is mapped from a file takes less memory.
        return request if stored is None else self._imported(stored, traced, options)

    def _imported(
        self, compiled: Buffer, traced: TracedStep, options: dict[str, object]
    ) -> Request:
        # The model reads its weights where they lie.
        tensor = self._openvino.Tensor(np.frombuffer(compiled, np.uint8), shared_memory=True)
        model = self._core.import_model(tensor, "CPU", options)
        if isinstance(compiled, mmap.mmap):
            compiled.madvise(mmap.MADV_DONTNEED)  # Read again from the file where it is needed.
        return Request(self._openvino.Tensor, model, traced.parts, compiled)

    def converted(self, traced: TracedStep) -> Model:
        """Convert a step into a model of OpenVINO's."""
        # It would log the whole graph where fairseq has logging print everything.
        logging.getLogger("openvino").setLevel(logging.WARNING)
        from openvino.frontend import FrontEndManager
        from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

        frontend = FrontEndManager().load_by_framework("pytorch")
        # Not openvino.convert_model, which reports its use. The decoder has to outlive the
        # conversion.
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
        """The name of its files; it takes as long as reading all weights."""
        return self._engine.files.fingerprint(self.traced.graph)

    @cached_property
    def model(self) -> Model:
        """The step as a model of OpenVINO's; the conversion takes seconds."""
        return self._engine.converted(self.traced)

    def request_for_one_row(self, tokens: int) -> Request:
        """Return a request for this many tokens in a single row, or for any sizes if that fails.

        Sizes that are not known beforehand take a tenth of a step's time.
        """
        try:
            return self._engine.load(self, tokens)
        except RuntimeError as error:
            logger.warning("openvino cannot compile a step of one row (%s)", _reason(error))
            return self._engine.load(self)


def _reason(error: Exception) -> str:
    """Return the last line of an exception's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1]
