"""Streams: outputs over HTTP while they grow."""

from __future__ import annotations

import urllib.error
from collections.abc import Callable, Sequence
from html import escape
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.runs.inference_runs import SENTENCES
from helpers.runs.served import KEY, Server, events_of, pieces_of, settle

from specdec_plugins.inference.growth import Piece
from specdec_plugins.serve.app import Service
from specdec_plugins.serve.workers import Sentence


def test_pieces_are_the_translation(server: Server, expected: dict[str, str]) -> None:
    """With the blanks between sentences; each says where it comes from."""
    before = server.metric("specdec_steps_total")
    text = f" {SENTENCES[0]}\n\n{SENTENCES[2]}\n12\n"
    events = list(server.stream(text))
    output = f" {expected[SENTENCES[0]]}\n\n{expected[SENTENCES[2]]}\n12\n"
    name, done = events[-1]
    assert server.metric("specdec_steps_total") - before == done["steps"]
    assert pieces_of(events) == output == server.translate(text)[1]["translatedText"]
    assert (name, done["translatedText"]) == ("done", output)
    assert done["tokens"] >= done["steps"] > 2
    assert done["milliseconds"] > 0
    kinds = [data["accepted"] for name, data in events[:-1]]
    assert kinds[0] is kinds[-1] is None
    assert {True, False} <= set(kinds)
    assert len(kinds) > 5


def test_tags_are_pieces_of_their_own(server: Server, expected: dict[str, str]) -> None:
    marked = f'<p id="1">{SENTENCES[0]}</p>'
    events = list(server.stream(marked, format="html", source="auto"))
    assert pieces_of(events) == f'<p id="1">{escape(expected[SENTENCES[0]])}</p>'
    assert events[-1][1]["detectedLanguage"]["language"] == "en"


def test_nothing_to_translate(server: Server) -> None:
    assert [data.get("text") for _, data in server.stream("1 2 3")] == ["1 2 3", None]
    assert [name for name, _ in server.stream("")] == ["done"]


@pytest.mark.parametrize(
    "fields",
    [
        {"target": "fr"},
        {"q": 5},
        {"q": "a " * 2001},
        {"api_key": "wrong"},
    ],
)
def test_bad_requests_are_those_of_translate(fields: dict[str, Any], server: Server) -> None:
    with pytest.raises(urllib.error.HTTPError) as fault:
        list(server.stream(**{"q": "w1", **fields}))
    status, answer = server.translate(**{"q": "w1", **fields})
    assert (fault.value.code, fault.value.read()) == (status, _json(answer))


def _json(answer: dict[str, str]) -> bytes:
    return ('{"error":"' + answer["error"] + '"}').encode()


def test_a_stream_has_one_text(server: Server) -> None:
    status, answer = server.post(
        "/translate/stream", {"q": ["a", "b"], "target": "de", "api_key": KEY}
    )
    assert (status, answer["error"]) == (400, "q: is a list; a stream has one text")


def test_a_client_that_leaves_ends_the_stream(server: Server, expected: dict[str, str]) -> None:
    before = server.metric("specdec_tokens_total")
    events = server.stream("\n".join([SENTENCES[0]] * 200))
    for _ in range(5):
        assert next(events)[0] == "piece"
    events.close()
    settle(server)
    assert server.metric("specdec_tokens_total") == before
    assert server.translate(SENTENCES[0])[1]["translatedText"] == expected[SENTENCES[0]]


def streamed(text: str, write: Callable[[str], str]) -> list[tuple[str, Any]]:
    """The events of a text each of whose sentences ``write`` translates in a piece."""
    testing = pytest.importorskip("starlette.testclient", reason="no httpx is installed")

    async def translate(
        _: object, texts: Sequence[str], take: Callable[[int, Piece], None]
    ) -> list[Sentence]:
        results = []
        for number, source in enumerate(texts):
            if output := write(source):
                take(number, Piece(output, accepted=True, begin=0))
            results.append(Sentence([output]))
        return results

    workers: Any = SimpleNamespace(
        start=lambda: None, directions=[("en", "de")], busy=0, translate=translate
    )
    fields = {"q": text, "source": "en", "target": "de"}
    answer = testing.TestClient(Service(workers).app()).post("/translate/stream", json=fields)
    return list(events_of(answer.text.splitlines()))


def test_what_stands_before_an_empty_output_is_a_piece() -> None:
    events = streamed("  a.\n\nb.\nc.\n", lambda source: "B" * (source == "b."))
    assert pieces_of(events) == events[-1][1]["translatedText"] == "  \n\nB\n\n"


def test_an_error_in_a_stream_is_an_event_and_its_text_is_not_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def write(source: str) -> str:
        if source == "b.":
            raise RuntimeError(source * 9)
        return source

    name, data = streamed("a.\nb.\n", write)[-1]
    assert (name, data["status"]) == ("error", 500)
    assert data["error"] == "an error of the service, see its log"
    assert "/translate/stream: RuntimeError" in caplog.text
    assert "b.b." not in caplog.text
