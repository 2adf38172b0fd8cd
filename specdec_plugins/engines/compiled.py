"""Engines that compile steps for this machine's processor. No fairseq in here."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from specdec_plugins.engines.sizes import PaddedSizes
from specdec_plugins.engines.step import Run, Step
from specdec_plugins.files.errors import EngineError

logger = logging.getLogger(__name__)

EAGER = "eager"


class CompiledEngine(ABC):
    """Run compiled steps on as many threads as torch has when the engine is made.

    With ``fall_back``, PyTorch runs the steps that cannot be compiled, and the user is warned.
    """

    dtype = torch.float32
    sizes = PaddedSizes()

    def __init__(self, library: str, precision: str, fall_back: bool) -> None:
        self._library, self._precision, self._fall_back = library, precision, fall_back
        self._runners: set[str] = set()
        """The engines of the steps prepared so far."""
        self.fallbacks: list[str] = []
        self._threads = torch.get_num_threads()
        self._torch_threads = 1

    @property
    def name(self) -> str:
        """The engines of the steps prepared so far: the library, ``eager`` or both."""
        return " and ".join(sorted(self._runners, key=EAGER.__eq__)) or self._library

    @property
    def precision(self) -> str:
        """The precision of the arithmetic, that of compiled steps first."""
        used = [self._precision] * (self._runners != {EAGER})
        return " and ".join(dict.fromkeys([*used, *["float32"] * (EAGER in self._runners)]))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Leave the cores to the library: two pools of threads would stall each other."""
        before = torch.get_num_threads()
        torch.set_num_threads(self._torch_threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def prepare(self, step: Step) -> Run:
        """Compile a step.

        Raises:
            EngineError: the step cannot be compiled, and PyTorch is not to run it.
        """
        name = type(step).__name__
        try:
            run = self.compiled(step)
            self._runners.add(self._library)
            return run
        except Exception as error:  # the libraries' have no base class of their own
            problem = f"cannot compile {name} ({last_line(error)})"
            if not self._fall_back:
                raise EngineError(
                    f"--engine {self._library}: {problem}; use --engine eager"
                ) from error
            self.fallbacks.append(f"{self._library} {problem}")
            logger.warning("%s; torch runs it", self.fallbacks[-1])
            logger.debug("%s", self._library, exc_info=True)
            self._runners.add(EAGER)
            self._torch_threads = self._threads
            return step

    @abstractmethod
    def compiled(self, step: Step) -> Run:
        """Return the compiled step; whatever it raises means that this is impossible."""


class CompiledInput:
    """An input of a step, which the compiled step reads in the caller's memory.

    Setting an input takes about as long as a small product, so a tensor that was set before and
    has been filled anew is not set again.
    """

    def __init__(self, count: int, bind: Callable[[int, Tensor], None]) -> None:
        """
        Args:
            count: the number of the model's inputs that it fills: 1, or one for each entry of its
                first two dimensions.
            bind: lets one of these inputs read a contiguous tensor.
        """
        self._count, self._bind = count, bind
        self._last: Tensor | None = None
        self._memory: tuple[object, ...] = ()
        """The address, shape and strides of that tensor; :attr:`_parts` keep it alive."""

    def set(self, x: Tensor) -> None:
        """Let the compiled step read ``x``."""
        if x is self._last:
            return
        memory = x.data_ptr(), x.shape, x.stride()
        if memory != self._memory:
            self._last, self._memory = None, ()
            entries = x.flatten(0, 1) if self._count > 1 else [x]
            self._parts = [entry.contiguous() for entry in entries]
            for index, part in enumerate(self._parts):
                self._bind(index, part)
            if self._parts[0].data_ptr() != x.data_ptr():
                return  # They are copies.
        self._last, self._memory = x, memory


def last_line(error: Exception) -> str:
    """Return the last line of an exception's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1]
