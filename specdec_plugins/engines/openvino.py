"""Steps compiled by OpenVINO, for CPUs. No fairseq in here."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec_plugins.engines.compiled_files import CompiledFiles
from specdec_plugins.engines.compiled_step import CompiledCachedStep, CompiledStep, Request
from specdec_plugins.engines.engine import EngineError
from specdec_plugins.engines.imports import installed_openvino
from specdec_plugins.engines.sizes import PaddedSizes
from specdec_plugins.engines.step import CachedStep, Results, Run, Step
from specdec_plugins.engines.weight_compression import WeightCompression
from specdec_plugins.models.layers import Attend

logger = logging.getLogger(__name__)

Pairs = list[tuple[Tensor, Tensor]]
"""Keys and values, of each layer."""
HINTS = {"float32": "f32", "bfloat16": "bf16", "int8": "f32"}
"""By precision, that of arithmetic; with int8, weights are int8 and are multiplied as such where
the processor can."""


class OpenVinoEngine:
    """Compiles steps for this machine's processor."""

    name = "openvino"
    packed = False
    dtype = torch.float32
    sizes = PaddedSizes()

    def __init__(self, precision: str = "float32", fall_back: bool = False) -> None:
        """It will run steps by as many threads as torch has now.

        Args:
            precision: one of ``HINTS``.
            fall_back: a step that cannot be compiled is run by torch, and a warning says so.

        Raises:
            EngineError: OpenVINO, or what int8 takes, is not installed.
        """
        self.precision = precision
        self._openvino = installed_openvino()
        self._compress = WeightCompression() if precision == "int8" else None
        self._fall_back = fall_back
        self._threads = torch.get_num_threads()
        self._core = self._openvino.Core()
        self._options = {
            # Otherwise OpenVINO may choose bfloat16 by itself.
            "INFERENCE_PRECISION_HINT": HINTS[precision],
            "INFERENCE_NUM_THREADS": self._threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
        }
        self.about = {"openvino": self._openvino.__version__, **self._options}
        if self._compress is not None:
            self.about["compression"] = self._compress.about
        self._files = CompiledFiles({"precision": precision, **self.about})

    @contextmanager
    def running(self) -> Iterator[None]:
        """While steps are run: two pools of threads on the same cores would stall each other."""
        before = torch.get_num_threads()
        torch.set_num_threads(1)
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
            return self._prepared(step)
        except Exception as error:  # OpenVINO's are of several kinds, without a base of their own
            reason = _reason(error)
            if not self._fall_back:
                raise EngineError(
                    f"--engine openvino: cannot compile {name} ({reason}); use --engine eager"
                ) from error
            logger.warning("openvino cannot compile %s (%s); torch runs it", name, reason)
            return step

    def _prepared(self, step: Step) -> Run:
        if not isinstance(step, CachedStep):
            return CompiledStep(self._compiled(step, step.example()), step.transient, 1)
        layer, count = step.layers[0], len(step.layers)
        past = torch.zeros(count, 2, 2, layer.heads, 9, layer.head_dim)
        example = (past, torch.zeros(2, 1, 5, 14), *step.example())
        compiled = self._compiled(_Functional(step), example, {0, 2 + step.memory_at})
        return CompiledCachedStep(CompiledStep(compiled, step.transient))

    def _requests(self, compiled: bytes, parts: Sequence[int]) -> Callable[[], Request]:
        """What makes requests. The first one is made now: what OpenVINO cannot take is found out
        when models are loaded, not when they are used. ``parts``: as of a request."""

        def request() -> Request:
            model = self._core.import_model(BytesIO(compiled), "CPU", self._options)
            return Request(self._openvino.Tensor, model, parts)

        first = [request()]
        return lambda: first.pop() if first else request()

    def _compiled(
        self,
        module: nn.Module,
        example: tuple[Tensor | None, ...],
        by_layer: Collection[int] = (),
    ) -> Callable[[], Request]:
        """What makes requests of a module compiled for inputs of all sizes, now or earlier.

        ``by_layer``: which inputs are keys and values of all layers. The module gets a pair of each
        layer, and what is compiled has an input for each: to split them takes as long as to attend.
        """
        given = _Given(module, example, by_layer)
        parts = [
            list(x.flatten(0, 1)) if place in by_layer else [x]
            for place, x in enumerate(example)
            if x is not None
        ]
        with torch.no_grad():
            traced = _traced(given.eval(), tuple(chain.from_iterable(parts)))
        counts = list(map(len, parts))
        key = self._files.key(traced)
        kept = self._files.load(key)
        if kept is not None:
            try:
                return self._requests(kept, counts)
            except RuntimeError as error:
                reason = _reason(error)
                logger.warning("%s: openvino cannot take it (%s); compiling anew", key, reason)
        begin = time.perf_counter()
        compiled = self._core.compile_model(self._converted(traced), "CPU", self._options)
        seconds = time.perf_counter() - begin
        logger.info("openvino compiled a step in %.1f s, for this and later runs", seconds)
        exported: bytes = compiled.export_model().getvalue()
        self._files.save(key, exported)
        return self._requests(exported, counts)

    def _converted(self, traced: torch.jit.ScriptModule) -> Any:
        # It logs the whole graph, where a program such as fairseq's has logging print all.
        logging.getLogger("openvino").setLevel(logging.WARNING)
        from openvino.frontend import FrontEndManager
        from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

        frontend = FrontEndManager().load_by_framework("pytorch")
        # In place of openvino.convert_model, which tells its maker of its use. The decoder has to
        # live as long as the conversion.
        decoder = TorchScriptPythonDecoder(traced)
        model = frontend.convert(frontend.load(decoder))
        return model if self._compress is None else self._compress(model)


def _traced(module: nn.Module, inputs: tuple[Tensor, ...]) -> torch.jit.ScriptModule:
    with warnings.catch_warnings():
        # That the number of layers, and of keys and values, stays what it is.
        warnings.simplefilter("ignore", torch.jit.TracerWarning)  # type: ignore[attr-defined]
        traced: torch.jit.ScriptModule = torch.jit.trace(  # type: ignore[no-untyped-call]
            module, inputs, check_trace=False
        )
    return traced


def _reason(error: Exception) -> str:
    """What an exception says, in a line."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1]


class _Given(nn.Module):
    """A module that is called without the inputs that there never are, and with keys and values of
    all layers one after another."""

    def __init__(
        self, module: nn.Module, example: tuple[Tensor | None, ...], by_layer: Collection[int]
    ) -> None:
        super().__init__()
        self.module = module
        self._layers = [
            None if x is None else len(x) if place in by_layer else 0
            for place, x in enumerate(example)
        ]

    def forward(self, *tensors: Tensor) -> Results:
        left = iter(tensors)
        return self.module(*(_taken(left, layers) for layers in self._layers))


def _taken(left: Iterator[Tensor], layers: int | None) -> Tensor | Pairs | None:
    """The next input: a pair of each of the layers, one tensor for none of them, or nothing."""
    if layers is None:
        return None
    return [(next(left), next(left)) for _ in range(layers)] if layers else next(left)


class _Functional(nn.Module):
    """A cached step that writes nothing: the new keys and values are its last result."""

    def __init__(self, step: CachedStep) -> None:
        super().__init__()
        self.step = step

    def forward(self, past: Pairs, mask: Tensor, *inputs: Tensor | Pairs | None) -> Results:
        new: list[Tensor] = []
        attends = [_joined(keys, values, mask, new) for keys, values in past]
        results = self.step.run(attends, *inputs)
        return (*results, torch.stack(new))


def _joined(past_keys: Tensor, past_values: Tensor, mask: Tensor, new: list[Tensor]) -> Attend:
    """Self-attention over cached positions, ``(batch, heads, width, dim)`` each, and new ones,
    which are noted."""

    def attend(query: Tensor, key_value: Tensor) -> Tensor:
        new.append(key_value)
        keys, values = key_value.permute(2, 0, 3, 1, 4)
        keys, values = torch.cat([past_keys, keys], dim=2), torch.cat([past_values, values], dim=2)
        y = F.scaled_dot_product_attention(query.transpose(1, 2), keys, values, attn_mask=mask)
        return y.transpose(1, 2).flatten(2)

    return attend
