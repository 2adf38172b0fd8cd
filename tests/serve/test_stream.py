"""Streams: outputs over HTTP while they grow."""

from __future__ import annotations

import urllib.error
from html import escape
from typing import Any

import pytest
from helpers.runs.inference_runs import SENTENCES
from helpers.runs.served import KEY, Server, pieces_of, settle


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
