"""The service's application: routes, limits, keys and figures."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from traceback import format_tb
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from specdec_plugins.files.errors import InferenceError, counted
from specdec_plugins.inference.documents import Document, html_document, plain_document
from specdec_plugins.inference.growth import Piece
from specdec_plugins.inference.settings import Settings
from specdec_plugins.inference.tuned_modes import as_tuned
from specdec_plugins.serve import protocols
from specdec_plugins.serve.protocols import Asked, Fields
from specdec_plugins.serve.workers import Direction, Sentence, Workers

logger = logging.getLogger(__name__)

#: Bytes of a request, beside those of its text.
OVERHEAD = 65536
#: Bytes of a character, in a form at most.
WIDEST = 12
#: Seconds between two looks whether the client is still there.
LOOKS = 0.2
#: Buckets of a request's time, in seconds.
BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
#: The page at /. Its policy allows one style and one script, by a word that nobody can guess.
PAGE = Path(__file__).with_name("page.html").read_text("utf-8")
#: Headers of a stream: neither caches nor nginx are to hold it back.
UNBUFFERED = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


@dataclass(frozen=True)
class Limits:
    """Limits of requests."""

    #: Characters of text.
    characters: int = 20_000
    #: Seconds from the first byte to the answer.
    seconds: float = 60.0
    #: Requests that are answered at the same time.
    requests: int = 64


def make_service(
    models: Sequence[Path],
    *,
    workers: int = 1,
    threads: int = 1,
    beam: int = 1,
    limits: Limits = Limits(),
    api_key_file: Path | None = None,
    dictionaries: Path | None = None,
    **options: object,
) -> Service:
    """Return a service of pairs and verifiers, which :meth:`Service.app` loads.

    Args:
        workers: processes, each with all models.
        threads: of each worker.
        beam: hypotheses of beam search, for alternatives.
        api_key_file: a key a line, one of which has to come with each request.
        dictionaries: of all models, and other ``options``: see :meth:`Settings.of_model`.
    """
    keys: list[str] = []
    if api_key_file:
        lines = api_key_file.read_text("utf-8").splitlines()
        keys = [*filter(None, map(str.strip, lines))]
        if not keys:
            raise InferenceError(f"{api_key_file}: has no key")
    options |= {"beam": beam, "nbest": beam, "scores": False}
    settings = [
        as_tuned(Settings.of_model(path, dictionaries, **options), threads) for path in models
    ]
    return Service(Workers(settings, workers, threads), limits, keys)


class Figures:
    """Counters for Prometheus."""

    def __init__(self, workers: Workers) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "specdec_requests", "Answered requests", ["path", "status"], registry=registry
        )
        self.seconds = Histogram(
            "specdec_request_seconds", "Time of translations", buckets=BUCKETS, registry=registry
        )
        self.characters = Counter("specdec_characters", "Characters of text", registry=registry)
        self.steps = Counter("specdec_steps", "Steps of decoding", registry=registry)
        self.tokens = Counter("specdec_tokens", "Committed tokens", registry=registry)
        self.open = Gauge("specdec_open_requests", "Requests without an answer", registry=registry)
        busy = Gauge("specdec_busy_workers", "Workers that translate", registry=registry)
        busy.set_function(lambda: workers.busy)


class Service:
    """Answers requests by workers. Nothing of a text is logged."""

    def __init__(
        self, workers: Workers, limits: Limits = Limits(), keys: Sequence[str] = ()
    ) -> None:
        """``keys``: one of them has to come with each request; none: nobody is asked."""
        self.workers = workers
        self.limits = limits
        self.figures = Figures(workers)
        self._keys = [key.encode() for key in keys]
        self._places = asyncio.Semaphore(limits.requests)

    def app(self) -> Starlette:
        """Load the models in all workers, and return the application, which ends them."""
        self.workers.start()
        libre = partial(self._translate, protocols.libre_request, protocols.libre_answer)
        deepl = partial(self._translate, protocols.deepl_request, protocols.deepl_answer)
        routes = [
            self._route("/translate", libre, "POST"),
            self._route("/translate/stream", self._stream, "POST"),
            self._route("/detect", self._libre_detect, "POST"),
            self._route("/languages", self._libre_languages, "GET"),
            self._route("/v2/translate", deepl, "POST"),
            self._route("/v2/languages", self._deepl_languages, "GET", "POST"),
            self._route("/v2/usage", self._deepl_usage, "GET", "POST"),
            Route("/", self._page),
            Route("/health", self._health),
            Route("/metrics", self._metrics),
        ]
        return Starlette(routes=routes, lifespan=self._lifespan)

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        logger.info(
            "%s; %s, %d MiB",
            ", ".join(map(" to ".join, self.workers.directions)),
            counted(self.workers.count, "worker"),
            self.workers.mebibytes,
        )
        yield
        self.workers.stop()

    def _route(
        self, path: str, answer: Callable[[Request, Fields], Awaitable[Response]], *methods: str
    ) -> Route:
        """Return a route for requests with a key, whose errors are JSON, as both protocols have
        them."""
        key = "message" if path.startswith("/v2/") else "error"

        async def endpoint(request: Request) -> Response:
            try:
                fields = await self._fields(request)
                if path != "/languages":  # which LibreTranslate's clients ask for without a key
                    self._check_key(request, fields)
                response = await answer(request, fields)
            except HTTPException as error:
                response = JSONResponse({key: error.detail}, error.status_code)
            except ClientDisconnect:
                response = Response(status_code=499)
            except Exception as error:
                response = JSONResponse({key: _logged(path, error)}, 500)
            self.figures.requests.labels(path, response.status_code).inc()
            return response

        return Route(path, endpoint, methods=list(methods))

    async def _fields(self, request: Request) -> Fields:
        """Return the fields of a request's JSON or form."""
        reading = _read(request, WIDEST * self.limits.characters + OVERHEAD)
        try:
            body = await asyncio.wait_for(reading, self.limits.seconds)
        except asyncio.TimeoutError as error:
            raise HTTPException(408, "the request took too long to arrive") from error
        try:
            return protocols.fields_of(body, request.headers.get("content-type", ""))
        except (ValueError, RecursionError) as error:
            raise HTTPException(400, "the request is neither JSON nor a form") from error

    def _check_key(self, request: Request, fields: Fields) -> None:
        """Refuse a request without a key: LibreTranslate's clients send ``api_key``, DeepL's a
        header, older ones ``auth_key``."""
        _, _, header = request.headers.get("authorization", "").strip().partition(" ")
        key = fields.get("api_key") or fields.get("auth_key") or header.strip()
        sent = str(key).encode("utf-8", "replace")
        # All are compared, so that the time tells nothing.
        matches = [hmac.compare_digest(sent, known) for known in self._keys]
        if self._keys and not any(matches):
            raise HTTPException(403, "the API key is missing or wrong")

    async def _translate(
        self,
        read: Callable[[Fields, Sequence[Direction]], Asked],
        answer: Callable[[Asked, Sequence[Sequence[str]]], Any],
        request: Request,
        fields: Fields,
    ) -> Response:
        """Answer by a protocol, by which ``read`` reads the request, and ``answer`` answers it."""
        asked = read(fields, self.workers.directions)
        outputs, results = await self._translated(request, asked, await self._documents(asked))
        return JSONResponse({**answer(asked, outputs), **_notes(results)})

    async def _stream(self, request: Request, fields: Fields) -> Response:
        asked = protocols.libre_request(fields, self.workers.directions)
        if len(asked.texts) > 1:
            raise HTTPException(400, "q: is a list; a stream has one text")
        events: asyncio.Queue[str] = asyncio.Queue()
        work = asyncio.ensure_future(self._grow(request, asked, events.put_nowait))
        work.add_done_callback(lambda _: events.put_nowait(""))
        # An error before the first word has a status of its own.
        first = await events.get() or work.result()

        async def body() -> AsyncIterator[str]:
            event = first
            try:
                while event:
                    yield event
                    event = await events.get()
                work.result()
            except HTTPException as error:
                yield _event("error", error=error.detail, status=error.status_code)
            except Exception as error:
                yield _event("error", error=_logged("/translate/stream", error), status=500)
            finally:
                work.cancel()

        return StreamingResponse(body(), 200, UNBUFFERED, "text/event-stream")

    async def _grow(self, request: Request, asked: Asked, put: Callable[[str], object]) -> str:
        """Put server-sent events: the pieces of an output, then the whole and its figures.

        Each piece tells whether it was drafted and accepted; None: it was not translated.
        """
        begin = time.perf_counter()
        documents = await self._documents(asked)
        document = documents[0]

        def show(text: str, accepted: bool | None) -> None:
            if text:
                put(_event("piece", text=text, accepted=accepted))

        shown = 0

        def take(number: int, piece: Piece) -> None:
            nonlocal shown
            for part in document.parts[2 * shown : 2 * number + 1 : 2]:
                show(part, None)
            shown = number + 1
            show(document.written("", piece.text), piece.accepted)

        outputs, results = await self._translated(request, asked, documents, take)
        for part in document.parts[2 * shown :: 2]:
            show(part, None)
        done = _event(
            "done",
            **protocols.libre_answer(asked, outputs),
            steps=sum(result.steps for result in results),
            tokens=sum(result.tokens for result in results),
            milliseconds=round(1000 * (time.perf_counter() - begin), 1),
            **_notes(results),
        )
        put(done)
        return ""

    async def _libre_detect(self, _request: Request, _fields: Fields) -> Response:
        return JSONResponse(protocols.detected(self.workers.directions))

    async def _libre_languages(self, _request: Request, _fields: Fields) -> Response:
        return JSONResponse(protocols.libre_languages(self.workers.directions))

    async def _deepl_languages(self, request: Request, fields: Fields) -> Response:
        # DeepL's client sends a body with GET.
        kind = str(request.query_params.get("type") or fields.get("type", ""))
        return JSONResponse(protocols.deepl_languages(self.workers.directions, kind))

    async def _deepl_usage(self, _request: Request, _fields: Fields) -> Response:
        used = self.figures.registry.get_sample_value("specdec_characters_total")
        return JSONResponse({"character_count": int(used or 0), "character_limit": 10**12})

    async def _page(self, _request: Request) -> Response:
        return HTMLResponse(
            PAGE.replace("NONCE", secrets.token_urlsafe(16)), headers={"X-Frame-Options": "DENY"}
        )

    async def _health(self, _request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _metrics(self, _request: Request) -> Response:
        return PlainTextResponse(generate_latest(self.figures.registry))

    async def _documents(self, asked: Asked) -> list[Document]:
        """Divide the texts of a request, if they are not too long."""
        if sum(map(len, asked.texts)) > self.limits.characters:
            raise HTTPException(413, f"a request may have {self.limits.characters} characters")
        make = html_document if asked.is_html else plain_document
        language = asked.direction[0]
        # Tags that nobody closes take the parser of HTML seconds.
        return [await asyncio.to_thread(make, text, language, asked.splits) for text in asked.texts]

    async def _translated(
        self,
        request: Request,
        asked: Asked,
        documents: Sequence[Document],
        take: Callable[[int, Piece], object] | None = None,
    ) -> tuple[list[list[str]], list[Sentence]]:
        """Return the outputs of each text, and all sentences; ``take``: see :class:`Workers`."""
        if self._places.locked():
            raise HTTPException(429, "too many requests wait; try again later")
        async with self._places:
            with self.figures.open.track_inprogress(), self.figures.seconds.time():
                sentences = [text for document in documents for text in document.sentences]
                results = await self._while_there(
                    request, self.workers.translate(asked.direction, sentences, take)
                )
        self.figures.characters.inc(sum(map(len, asked.texts)))
        self.figures.steps.inc(sum(result.steps for result in results))
        self.figures.tokens.inc(sum(result.tokens for result in results))
        return _outputs(documents, results), results

    async def _while_there(
        self, request: Request, translate: Coroutine[Any, Any, list[Sentence]]
    ) -> list[Sentence]:
        """Translate as long as the client waits, and the limit lets it."""
        work = asyncio.ensure_future(translate)
        end = time.monotonic() + self.limits.seconds
        try:
            while not (await asyncio.wait([work], timeout=LOOKS))[0]:
                if await request.is_disconnected():
                    raise HTTPException(499, "the client left")
                if time.monotonic() > end:
                    raise HTTPException(504, f"it takes more than {self.limits.seconds:g} s")
        finally:
            work.cancel()
        return work.result()


def _logged(path: str, error: Exception) -> str:
    """Log an error without its message, which may have words of the text; return what to answer."""
    where = "".join(format_tb(error.__traceback__))
    logger.error("%s: %s\n%s", path, type(error).__name__, where)
    return "an error of the service, see its log"


async def _read(request: Request, max_bytes: int) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > max_bytes:
            raise HTTPException(413, f"a request may have {max_bytes} bytes")
    return body


def _event(name: str, **data: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


def _outputs(documents: Sequence[Document], results: Sequence[Sentence]) -> list[list[str]]:
    """Return each document's outputs: as many as a beam has, the best first, each text once."""
    outputs = []
    rest = iter(results)
    for document in documents:
        sentences = list(islice(rest, len(document.sentences)))
        ranks = max((len(sentence.texts) for sentence in sentences), default=1)
        texts = (document.joined([x.ranked(rank) for x in sentences]) for rank in range(ranks))
        outputs.append(list(dict.fromkeys(texts)))
    return outputs


def _notes(results: Sequence[Sentence]) -> dict[str, Any]:
    """Return the fields that say what is wrong with an output; none where nothing is."""
    notes = {
        "limited": sum(result.limited for result in results),
        "unknownWords": sum(result.unknown for result in results),
        "faults": [result.fault for result in results if result.fault],
    }
    return {"specdec": notes} if any(notes.values()) else {}
