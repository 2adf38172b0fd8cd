"""Steps run by ONNX Runtime, for CPUs: float32, or int8 by its own kernels. No fairseq in here."""

from __future__ import annotations

import logging
import math
import platform
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from threading import Lock, local
from typing import Any

import torch
from torch import Tensor, nn

from specdec_plugins.engines.engine import EAGER, Engine
from specdec_plugins.engines.exported_step import ExportedStep, Shape
from specdec_plugins.engines.int8_products import int8_products, weight_bits
from specdec_plugins.engines.step import Results, Run, Step
from specdec_plugins.files.errors import EngineError
from specdec_plugins.machine import give_back, processor_name

logger = logging.getLogger(__name__)

#: Relative errors of a step. That of int8 stays below 0.1; a wrong kernel's is near 1 or above.
TOLERATED = {"float32": 0.001, "int8": 0.5}
#: Stands for empty tensors, since bindings refuse null pointers. It is neither read nor written.
_NOT_EMPTY = torch.empty(1)


#: Torch's threads before each thread's run that is in progress; those before the first are the
#: user's.
_BEFORE: list[int] = []
_LOCK = Lock()
_THIS_THREAD = local()


class OnnxRuntimeEngine(Engine):
    """Run exported steps, each in one session for inputs of all sizes.

    It takes as many threads as torch has when the engine is made. With ``fall_back``, PyTorch runs
    the steps that cannot be exported, and the user is warned.
    """

    name = "onnxruntime"
    dtype = torch.float32
    whole_cache = True
    stores_weights = True

    def __init__(self, precision: str = "float32", fall_back: bool = False) -> None:
        """``precision``: float32 or int8."""
        try:
            import onnx  # noqa: F401  # torch exports by it
            import onnxruntime
        except ImportError as error:
            raise EngineError(
                f"--engine onnxruntime: cannot be imported ({error}); pip install "
                "'specdec-plugins[int8]', or use --engine eager"
            ) from error
        super().__init__(precision)
        self._runtime = onnxruntime
        self._precision = precision
        self._fall_back = fall_back
        self._layers: list[nn.Linear] = []
        self._threads = torch.get_num_threads()
        self._torch_threads = 1

    @contextmanager
    def running(self) -> Iterator[None]:
        """Leave the cores to ONNX Runtime: two pools of threads would stall each other."""
        # A copy of the verifier drafts within the verifier's run.
        nested = getattr(_THIS_THREAD, "is_inside", False)
        before = torch.get_num_threads()
        with _LOCK:
            _BEFORE.append(before)
            torch.set_num_threads(self._torch_threads)
        _THIS_THREAD.is_inside = True
        try:
            yield
        finally:
            _THIS_THREAD.is_inside = nested
            with _LOCK:
                torch.set_num_threads(before if nested else _BEFORE[0])
                _BEFORE.pop()

    def prepare(self, step: Step) -> Run:
        """Export and load a step."""
        try:
            run = self.load(step)
        except Exception as error:  # the libraries' have no base class of their own
            text = str(error).strip() or type(error).__name__
            problem = f"cannot compile {type(step).__name__} ({text.splitlines()[-1]})"
            if not self._fall_back:
                raise EngineError(f"--engine onnxruntime: {problem}; use --engine eager") from error
            self.fallbacks.append(f"onnxruntime {problem}")
            logger.warning("%s; torch runs it", self.fallbacks[-1])
            logger.debug("onnxruntime", exc_info=True)
            self._run_by(EAGER, "float32")
            self.stores_weights = False
            self._torch_threads = self._threads
            return step
        self._run_by(OnnxRuntimeEngine.name, self._precision)
        for item in step.projections:
            self._layers += item.layers
            item.release()
        return run

    def load(self, step: Step) -> Run:
        """Return the step in a session; whatever it raises means that this is impossible."""
        exported = ExportedStep(step)
        with ExitStack() as stack:
            if self._precision == "int8":
                bits = weight_bits(processor_name(), platform.machine())
                rounded = [item for item in step.projections if item not in step.exact]
                stack.enter_context(int8_products(rounded, bits, step.by_token))
            give_back()  # of quantising, and of the step before
            content = exported.export()
        options = self._runtime.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.log_severity_level = 3
        # Threads that wait busily would take the cores from the other engine of a pair.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        session = self._runtime.InferenceSession(content, options, ["CPUExecutionProvider"])
        session._model_bytes = None  # kept in case other providers have to take over: 90 MiB
        run = _Session(session, exported, range(step.transient, len(exported.results)))
        exported.check(run, TOLERATED[self._precision])
        return run

    def release(self) -> None:
        """Free the weights that sessions hold as well: the models cannot run without them."""
        for layer in self._layers:
            layer.weight.data = layer.weight.new_empty(0)


class _Session:
    """A session, called like the step, which reads and writes torch's memory."""

    def __init__(self, session: Any, exported: ExportedStep, fresh: Collection[int]) -> None:
        """``fresh``: the results that the next run must not overwrite."""
        self._session = session
        self._binding = session.io_binding()
        self._fresh = fresh
        used = {item.name for item in session.get_inputs()}
        self._lookups = exported.lookups
        for name in used.intersection(self._lookups):
            self._binding.bind_input(name, *_described(self._lookups[name]))
        self._inputs = [
            _Input(self._binding, [name if name in used else None for name in names])
            for names in exported.names
        ]
        self._results = [
            _Result(self._binding, item.name, shape, dtype)
            for item, (shape, dtype) in zip(session.get_outputs(), exported.results)
        ]
        self._inputs[0].results = exported.cached

    def __call__(self, *inputs: Tensor | None) -> Results:
        present = [x for x in inputs if x is not None]
        changed = [target.set(x) for target, x in zip(self._inputs, present, strict=True)]
        if any(changed):
            self._sized = [result.sized(present) for result in self._results]
        self._session.run_with_iobinding(self._binding)
        return tuple(x.clone() if i in self._fresh else x for i, x in enumerate(self._sized))


class _Input:
    """An input of a step, which the session reads in the caller's memory.

    A tensor that was set before and has been filled anew is not bound again.
    """

    def __init__(self, binding: Any, names: Sequence[str | None]) -> None:
        """``names``: of the model's inputs, one for each entry of the first two dimensions if there
        are several; None: unused."""
        self._binding = binding
        self._names = names
        #: The names of results to write to the same memory, one for each name.
        self.results: Sequence[str] = ()
        self._last: Tensor | None = None
        #: The address, shape and strides of that tensor; :attr:`_parts` keep it alive.
        self._memory: tuple[object, ...] = ()

    def set(self, x: Tensor) -> bool:
        """Let the session read ``x``; return False if it was the last one, too."""
        if x is self._last:
            return False
        memory = x.data_ptr(), x.shape, x.stride()
        if memory != self._memory:
            self._last = None
            self._memory = ()
            entries = x.flatten(0, 1) if len(self._names) > 1 else [x]
            self._parts = [entry.contiguous() for entry in entries]
            *kind, _ = _described(self._parts[0])
            for name, part in zip(self._names, self._parts, strict=True):
                if name is not None:
                    self._binding.bind_input(name, *kind, _address(part))
            for name, part in zip(self.results, self._parts):
                self._binding.bind_output(name, *kind, _address(part))
            if self._parts[0].data_ptr() != x.data_ptr():
                return True  # They are copies.
        self._last = x
        self._memory = memory
        return True


class _Result:
    """A result of a step, which the session writes to the same memory in every run."""

    def __init__(self, binding: Any, name: str, shape: Shape, dtype: torch.dtype) -> None:
        self._binding = binding
        self._name = name
        self._shape = shape
        self._memory = torch.empty(0, dtype=dtype)
        self._last: Tensor | None = None

    def sized(self, inputs: Sequence[Tensor]) -> Tensor:
        """Return the tensor that the next run will fill."""
        shape = list[int]()
        for size in self._shape:
            if not isinstance(size, int):
                index, axis, less = size
                size = inputs[index].size(axis) - less
            shape.append(size)
        if self._last is None or list(self._last.shape) != shape:
            count = math.prod(shape)
            if len(self._memory) < count:
                self._memory = self._memory.new_empty(count)
            self._last = self._memory[:count].view(shape)
            self._binding.bind_output(self._name, *_described(self._last))
        return self._last


def _described(x: Tensor) -> tuple[object, ...]:
    """Return what a binding asks for: the device, the type, the shape and the address."""
    return "cpu", 0, x.numpy().dtype.type, list(x.shape), _address(x)


def _address(x: Tensor) -> int:
    """Return where a tensor is; for an empty one, which is nowhere, an address that is valid."""
    return x.data_ptr() or _NOT_EMPTY.data_ptr()
