"""Worker processes that hold the models, and the queue of sentences before them."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from functools import partial
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from threading import Thread
from typing import NamedTuple

from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.inference.growth import Piece
from specdec_plugins.inference.settings import Settings
from specdec_plugins.inference.translator import Translator

logger = logging.getLogger(__name__)

#: A source and a target language, such as ``("en", "de")``.
Direction = tuple[str, str]
#: Workers are forks of a process that has one thread, and has loaded the libraries for all of them.
#: A fork of this process would share the locks of its threads. (OpenBLAS ends its own at a fork.)
FORKS = get_context("forkserver")
FORKS.set_forkserver_preload(
    ["specdec_plugins.inference.loading", "numba", "onnx", "onnxruntime", "sacremoses"]
)
#: Deaths of workers after which a sentence is given up.
TRIES = 2


class Sentence(NamedTuple):
    """A sentence's translation."""

    #: The outputs of a beam, the best first; the sentence itself, if it could not be translated.
    texts: Sequence[str]
    #: True if its end may be missing.
    limited: bool = False
    #: True if a dictionary lacks a word of it.
    unknown: bool = False
    #: The reason why there is none.
    fault: str = ""
    #: Steps of decoding, and the tokens that they committed.
    steps: int = 0
    tokens: int = 0

    def ranked(self, rank: int) -> str:
        """Return an output by its rank, 0 for the best; the last where there are fewer."""
        return self.texts[min(rank, len(self.texts) - 1)]


#: A worker's translators.
TRANSLATORS: dict[Direction, Translator] = {}


def _load(models: Sequence[Settings], threads: int) -> tuple[Sequence[Direction], int]:
    """Load all models, in a worker, which ends with the process that it works for.

    Returns:
        Their directions, and the largest memory that the worker has had, in MiB.
    """
    import torch

    from specdec_plugins.inference.loading import load_translator

    Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    for settings in models:
        translator = load_translator(settings)
        loaded = translator.settings
        direction = str(loaded.source_lang), str(loaded.target_lang)
        other = TRANSLATORS.setdefault(direction, translator)
        if other is not translator:
            raise InferenceError(
                f"{other.settings.ar_path} and {loaded.ar_path}: are both for "
                f"{' to '.join(direction)}; give one of them"
            )
    return list(TRANSLATORS), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def _end_with_parent() -> None:
    """Wait until the parent has ended, in whatever way, and end at once."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _translate(direction: Direction, text: str, pieces: Connection | None) -> Sentence:
    on_piece = None if pieces is None else lambda _, piece: pieces.send(piece)
    translator = TRANSLATORS[direction]
    # It keeps a latency for each sentence.
    translator.generator.statistics = DecodingStatistics()
    (result,) = translator.translate_batch([text], on_piece=on_piece)
    if isinstance(result, Exception):
        return Sentence([text], fault=str(result))
    tokens = len(result.tokens) - result.forced
    return Sentence(
        [result.text, *(hypothesis.text for hypothesis in result.hypotheses[1:])],
        limited=result.limited,
        unknown=result.unknown,
        steps=len(result.accepted) or tokens,  # a beam has none
        tokens=tokens,
    )


@contextmanager
def _pipe(take: Callable[[Piece], object]) -> Iterator[Connection]:
    """Open a pipe for a worker's pieces, which ``take`` is given as they come.

    A worker that writes to it when it is closed gives its sentence up.
    """
    loop = asyncio.get_running_loop()
    receiver, sender = FORKS.Pipe(duplex=False)
    known = 0

    def read() -> None:
        nonlocal known
        while receiver.poll():
            piece = receiver.recv()
            # A worker in place of one that died begins anew.
            if piece.begin == known:
                known += len(piece.text)
                take(piece)

    loop.add_reader(receiver.fileno(), read)
    try:
        yield sender
        read()
    finally:
        loop.remove_reader(receiver.fileno())
        receiver.close()
        sender.close()


class Workers:
    """Processes, each of which translates a sentence at a time.

    Whoever waits longest is next. A request has no more sentences in the queue than there are
    workers, so that others' sentences take turns with its own.
    """

    def __init__(self, models: Sequence[Settings], count: int, threads: int) -> None:
        """
        Args:
            models: a translator's settings, for each direction.
            count: of processes.
            threads: of each.
        """
        self._load = models, threads
        self.count = count
        #: The directions of the models, when they are loaded.
        self.directions: Sequence[Direction] = ()
        #: The memory that all workers take at most; what they share counts for each of them.
        self.mebibytes = 0
        self._idle: asyncio.Queue[ProcessPoolExecutor] = asyncio.Queue()
        self._all: set[ProcessPoolExecutor] = set()

    def start(self) -> None:
        """Load the models in all workers.

        Raises:
            InferenceError: a worker died.
            Exception: whatever a model raises that cannot be loaded.
        """
        threads = str(self._load[1])
        os.environ.update(OMP_NUM_THREADS=threads, MKL_NUM_THREADS=threads)
        # Not by an initializer, whose errors would be lost.
        self._all = {ProcessPoolExecutor(1, FORKS) for _ in range(self.count)}
        loads = [worker.submit(_load, *self._load) for worker in self._all]
        try:
            ready = [load.result() for load in loads]
        except BrokenProcessPool as error:
            raise InferenceError(
                "a worker died while it loaded the models; if memory is short, give fewer --workers"
            ) from error
        self.directions, _ = ready[0]
        self.mebibytes = sum(mebibytes for _, mebibytes in ready)
        for worker in self._all:
            self._idle.put_nowait(worker)

    def stop(self) -> None:
        """End all processes."""
        for worker in self._all:
            worker.shutdown(wait=False, cancel_futures=True)

    @property
    def busy(self) -> int:
        """The number of workers that translate."""
        return self.count - self._idle.qsize()

    async def translate(
        self,
        direction: Direction,
        texts: Sequence[str],
        take: Callable[[int, Piece], object] | None = None,
    ) -> list[Sentence]:
        """Return the translation of each text; cancelled, it begins no other text.

        Args:
            take: is given the index of a text and a piece of its translation as soon as it is
                committed; texts are then translated one after another.
        """
        results: dict[int, Sentence] = {}
        rest = iter(enumerate(texts))

        async def work() -> None:
            for number, text in rest:
                pipe = nullcontext() if take is None else _pipe(partial(take, number))
                with pipe as pieces:
                    worker = await self._idle.get()
                    # Cancelled, it does not cancel the work: a worker is idle when its sentence
                    # has ended.
                    results[number] = await asyncio.shield(
                        self._run(worker, direction, text, pieces)
                    )
                # Whoever waits for a worker takes it now: a queue gives it to who asks first.
                await asyncio.sleep(0)

        count = self.count if take is None else 1
        await asyncio.gather(*(work() for _ in range(min(count, len(texts)))))
        return [results[number] for number in range(len(texts))]

    async def _run(
        self,
        worker: ProcessPoolExecutor,
        direction: Direction,
        text: str,
        pieces: Connection | None,
    ) -> Sentence:
        """Translate a text by a worker, or by another one if it dies."""
        loop = asyncio.get_running_loop()
        try:
            for _ in range(TRIES):
                try:
                    return await loop.run_in_executor(worker, _translate, direction, text, pieces)
                except BrokenProcessPool:
                    logger.error("a worker died; another one is started")
                    self._all.discard(worker)
                    worker = ProcessPoolExecutor(1, FORKS, _load, self._load)
                    self._all.add(worker)
                except OSError:
                    return Sentence([text], fault="nobody reads its pieces")
            return Sentence([text], fault="its workers died")
        finally:
            self._idle.put_nowait(worker)
