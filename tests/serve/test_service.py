"""The service as its clients see it: one server, two workers, a random pair."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from html import escape
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest
from helpers.models.drafters import save_pair
from helpers.runs.inference_runs import SENTENCES, make_settings
from helpers.runs.served import (
    KEY,
    LIBRARIES,
    Server,
    children_of,
    is_alive,
    kill_workers,
    parent_of_workers,
    pieces_of,
    settle,
    start,
)

from specdec_plugins.cli import serve
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.inference import load_translator
from specdec_plugins.serve import workers as worker_processes

for library in LIBRARIES:
    pytest.importorskip(library, reason=f"{library} is not installed (extra [serve])")

from starlette.exceptions import HTTPException  # noqa: E402

from specdec_plugins.serve.app import Limits, Service  # noqa: E402
from specdec_plugins.serve.protocols import direction_of  # noqa: E402


def test_the_words_are_the_translators(server: Server, expected: dict[str, str]) -> None:
    """Also if requests take turns."""
    answers: dict[int, Any] = {}

    def ask(number: int) -> None:
        texts = SENTENCES[number:] + SENTENCES[:number]
        answers[number] = texts, server.translate(texts)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for texts, (status, answer) in answers.values():
        assert status == 200
        assert answer["translatedText"] == [expected[text] for text in texts]


def test_libretranslates_own_client(server: Server, expected: dict[str, str]) -> None:
    client = pytest.importorskip("libretranslatepy", reason="libretranslatepy is not installed")
    api = client.LibreTranslateAPI(server.url, KEY)
    assert api.translate(SENTENCES[0], "en", "de") == expected[SENTENCES[0]]
    codes = {item["code"]: item for item in api.languages()}
    assert codes["en"] == {"code": "en", "name": "English", "targets": ["de"]}
    assert codes["de"]["targets"] == []
    assert api.detect("anything")[0]["language"] == "en"


def test_deepls_own_client(server: Server, expected: dict[str, str]) -> None:
    deepl = pytest.importorskip("deepl", reason="deepl is not installed")
    client = deepl.DeepLClient(KEY, server_url=server.url)
    first, second = client.translate_text(SENTENCES[:2], target_lang="DE")
    assert [first.text, second.text] == [expected[text] for text in SENTENCES[:2]]
    assert first.detected_source_lang == "EN"
    regional = client.translate_text(SENTENCES[0], source_lang="EN", target_lang="DE-CH")
    assert regional.text == expected[SENTENCES[0]]
    marked = client.translate_text(f"<b>{SENTENCES[0]}</b>", target_lang="DE", tag_handling="html")
    assert marked.text == f"<b>{escape(expected[SENTENCES[0]])}</b>"
    assert [item.code for item in client.get_target_languages()] == ["DE"]
    assert client.get_usage().character.count > 0
    with pytest.raises(deepl.AuthorizationException):
        deepl.DeepLClient("wrong", server_url=server.url).get_usage()


@pytest.mark.parametrize("kind", ["json", "urlencoded", "multipart", "Urlencoded", "Multipart"])
def test_forms_and_json(kind: str, server: Server, expected: dict[str, str]) -> None:
    """As curl, a browser's FormData and Weblate send them."""
    fields = {"q": SENTENCES[0], "source": "auto", "target": "de", "api_key": KEY}
    body, content_type = json.dumps(fields).encode(), "application/json"
    if kind.lower() == "urlencoded":
        body, content_type = urlencode(fields).encode(), f"application/x-www-form-{kind}"
    elif kind.lower() == "multipart":
        part = '--x\r\nContent-Disposition: form-data; name="{}"\r\n\r\n{}\r\n'
        body = ("".join(part.format(*item) for item in fields.items()) + "--x--\r\n").encode()
        content_type = f"{kind}/form-data; boundary=x"
    status, answer = server.post("/translate", body, **{"Content-Type": content_type})
    assert status == 200
    assert answer["translatedText"] == expected[SENTENCES[0]]
    assert answer["detectedLanguage"] == {"confidence": 100, "language": "en"}


def test_subtitle_edits_request(two: Server, expected: dict[str, str]) -> None:
    """To a server without keys, before which its JSON lacks a comma."""
    body = f'{{"q": "{SENTENCES[0]}", "source": "en", "target": "de"}}'
    status, answer = two.post("/translate", body.encode(), Accept="application/json")
    assert (status, answer["translatedText"]) == (200, expected[SENTENCES[0]])


@pytest.mark.parametrize(
    ("split", "parts"),
    [
        ("0", ["w3 w4! w7", "\n", "w2 w9"]),
        ("1", ["w3 w4!", " ", "w7", "\n", "w2 w9"]),
        ("nonewlines", ["w3 w4!", " ", "w7 w2 w9"]),
    ],
)
def test_deepls_forms(
    split: str, parts: list[str], server: Server, expected: dict[str, str]
) -> None:
    """With ``text`` twice, and each of its ways to split."""
    texts = ["w3 w4! w7\nw2 w9", SENTENCES[0]]
    fields = {"text": texts, "split_sentences": split, "target_lang": "DE", "auth_key": KEY}
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    _, answer = server.post("/v2/translate", urlencode(fields, doseq=True).encode(), **form)
    first, second = answer["translations"]
    assert first["text"] == "".join(expected.get(part, part) for part in parts)
    assert second["text"] == expected[SENTENCES[0]]


def test_paragraphs_and_tags_stay(server: Server, expected: dict[str, str]) -> None:
    first, second = SENTENCES[:2]
    begin, end = expected[first], expected[second]
    status, answer = server.translate(f"{first}\n\n  {second}\n")
    assert (status, answer["translatedText"]) == (200, f"{begin}\n\n  {end}\n")
    marked = f'<p id="1">{first}</p><br>{second}'
    status, answer = server.translate(marked, format="html")
    assert answer["translatedText"] == f'<p id="1">{escape(begin)}</p><br>{escape(end)}'


@pytest.mark.parametrize("path", ["/translate", "/v2/translate", "/translate/stream"])
def test_an_error_of_our_own_is_in_the_log_without_the_text(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError(SENTENCES[0])

    testing = pytest.importorskip("starlette.testclient", reason="no httpx is installed")
    monkeypatch.setattr("specdec_plugins.serve.app.plain_document", fail)
    workers: Any = SimpleNamespace(start=lambda: None, directions=[("en", "de")], busy=0)
    service = Service(workers)
    fields = {"q": "a", "text": ["a"], "source": "en", "target": "de", "target_lang": "DE"}
    answer = testing.TestClient(service.app()).post(path, json=fields)
    assert answer.status_code == 500
    (message,) = answer.json().values()
    assert message == "an error of the service, see its log"
    assert f"{path}: AssertionError" in caplog.text
    assert "in fail" in caplog.text
    assert SENTENCES[0] not in caplog.text
    counted = service.figures.registry.get_sample_value(
        "specdec_requests_total", {"path": path, "status": "500"}
    )
    assert counted == 1


def test_a_worker_keeps_no_figures_of_sentences(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = load_translator(make_settings(world))
    monkeypatch.setattr(worker_processes, "TRANSLATORS", {("en", "de"): translator})
    for sentence in SENTENCES:
        worker_processes._translate(("en", "de"), sentence, None)
    assert len(translator.statistics.latencies) == 1


def test_what_is_wrong_with_an_output_is_said(server: Server) -> None:
    assert server.translate("nosuchword")[1]["specdec"]["unknownWords"] == 1
    assert server.translate(SENTENCES[:2])[1]["specdec"]["limited"] == 2
    assert "specdec" not in server.translate("1 2 3")[1]  # nothing to translate


@pytest.mark.parametrize("source", ["eng_Latn", "eng-US", "ENG", "auto", None])
def test_regions_and_scripts_of_languages_do_not_count(source: str | None) -> None:
    directions = [("eng_Latn", "deu_Latn"), ("fra_Latn", "eng_Latn")]
    for target in ("deu_Latn", "deu", "DEU-AT"):
        assert direction_of(directions, source, target) == directions[0]


def test_a_script_chooses_among_models_that_have_it() -> None:
    directions = [("eng_Latn", "zho_Hans"), ("eng_Latn", "zho_Hant")]
    assert direction_of(directions, "eng", "zho_Hant") == directions[1]
    with pytest.raises(HTTPException, match="several models"):
        direction_of(directions, "eng", "zho")


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"target": "fr"}, 400, "en to fr"),
        ({"source": "xx"}, 400, "xx to de"),
        ({"format": "pdf"}, 400, "format"),
        ({"q": 5}, 400, "q"),
        ({"q": ["a", None]}, 400, "q"),
        ({"q": []}, 400, "q"),
        ({"q": "a " * 2001}, 413, "4000 characters"),
        ({"api_key": "wrong"}, 403, "key"),
        ({"api_key": KEY.split()[0]}, 403, "key"),
        ({"api_key": None}, 403, "key"),
    ],
)
def test_bad_requests(fields: Any, status: int, words: str, server: Server) -> None:
    found, answer = server.translate(**{"q": "w1", **fields})
    assert found == status
    assert words in answer["error"]


def test_hostile_requests(server: Server, expected: dict[str, str]) -> None:
    """None is answered by 500, none stops the server."""
    deep = b'{"q": ' + b"[" * 20_000 + b"]" * 20_000 + b"}"
    part = b'--x\r\nContent-Disposition: form-data; name="q"\r\nContent-Type: multipart/mixed'
    part += b"; boundary=y\r\n\r\n--y\r\n\r\nw1\r\n--y--\r\n--x--"
    bodies = [b"", b"{", b"[]", b"\xff\xfe", deep, part]
    bodies += [b'{"q": 1e999}', b'{"q": {"a": 1}}', b'{"api_key": ["a"], "q": "a"}', b"\0" * 100]
    for body in bodies:
        for path in ("/translate", "/v2/translate", "/detect"):
            for kind in (
                "application/json",
                "application/x-www-form-urlencoded",
                "multipart/form-data",
                "multipart/form-data; boundary=x",
            ):
                status, _ = server.post(path, body, **{"Content-Type": kind})
                assert 400 <= status < 500, (path, kind, body[:40])
    with suppress(urllib.error.URLError):  # it does not read on
        assert server.translate("a" * 10_000_000)[0] == 413
    texts = ["w1 \0 w2", "\ud800 w1", "w1\u2028w2", "\u202e w1", "w1 " * 1000, "\n" * 3000]
    for text in texts:
        assert server.translate(text)[0] == 200, ascii(text[:20])
    for sent in (
        b"GET / HTTP/1.1\r\n",
        b"POST /translate HTTP/1.1\r\nContent-Length: 100\r\n\r\n{",
    ):
        with socket.create_connection(server.url.removeprefix("http://").split(":")) as half:
            half.sendall(sent)
            half.shutdown(socket.SHUT_WR)
    assert server.translate(SENTENCES[0])[1]["translatedText"] == expected[SENTENCES[0]]
    assert server.metric("specdec_open_requests") == 0


def test_a_short_request_does_not_wait_for_a_long_one(server: Server) -> None:
    long = threading.Thread(target=server.translate, args=([SENTENCES[0]] * 30,))
    long.start()
    while not server.metric("specdec_open_requests"):
        time.sleep(0.01)
    assert server.translate(SENTENCES[1])[0] == 200
    assert long.is_alive()
    long.join()


def test_a_client_that_leaves_ends_its_sentences(server: Server) -> None:
    before = server.metric("specdec_tokens_total")
    body = json.dumps({"q": [SENTENCES[0]] * 200, "source": "en", "target": "de", "api_key": KEY})
    address = server.url.removeprefix("http://").split(":")
    with socket.create_connection(address) as client:
        head = f"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall((head + body).encode())
    settle(server)
    assert server.metric("specdec_tokens_total") == before


def test_workers_are_forks_of_a_process_with_one_thread(server: Server, narrow: Server) -> None:
    """Locks of other threads would stay locked in them. The libraries are loaded there."""
    for service, workers in ((server, 2), (narrow, 1)):
        parent = parent_of_workers(service)
        status = Path(f"/proc/{parent}/status").read_text()
        assert "Threads:\t1\n" in status
        assert "onnxruntime" in Path(f"/proc/{parent}/maps").read_text()
        assert len(children_of(parent)) == workers


def test_a_worker_that_dies_is_replaced(server: Server, expected: dict[str, str]) -> None:
    """A stream goes on where it was."""
    lines = SENTENCES * 4
    events = server.stream("\n".join(lines))
    first = next(events)
    kill_workers(server)
    assert pieces_of([first, *events]) == "\n".join(expected[line] for line in lines)
    status, answer = server.translate(SENTENCES)
    assert status == 200
    assert answer["translatedText"] == [expected[text] for text in SENTENCES]
    assert "a worker died" in server.log.read_text()


def test_a_port_that_no_machine_has(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert serve.main([str(world), "--port", "65536"]) == 2
    assert "--port 65536: must be at most 65535" in capfd.readouterr().err


@pytest.fixture(scope="module")
def narrow(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One request at a time, for two seconds; with a beam, and two threads a worker."""
    flags = ["--timeout", "2", "--max-requests", "1", "--max-characters", "50000"]
    flags += ["--workers", "1", "--threads", "2", "--beam", "3"]
    server = start(world, tmp_path_factory.mktemp("narrow"), *flags)
    yield server
    server.process.terminate()
    server.process.wait(60)


def test_limits_of_time_and_number(narrow: Server) -> None:
    answers: list[tuple[int, object]] = []
    long = ["w3 w4 w5 w6 " * 4] * 1000
    threads = [
        threading.Thread(target=lambda: answers.append(narrow.translate(long))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
        time.sleep(0.2)
    for thread in threads:
        thread.join()
    assert 429 in [status for status, _ in answers]
    events = list(narrow.stream("\n".join(long)))
    assert [name for name, _ in events[-2:]] == ["piece", "error"]
    assert events[-1][1] == {"error": "it takes more than 2 s", "status": 504}
    assert re.search("wait", str(answers))


def test_alternatives_of_a_beam(world: Path, narrow: Server) -> None:
    """As many as asked for, at most, each another text; those of a text's sentences are joined."""
    options = {"tokenizer": "moses", "bpe": "subword_nmt", "limits": GenerationLimits()}
    searched = load_translator(make_settings(world, beam=3, nbest=3, **options))
    lines = list(searched.translate(SENTENCES[:2]))
    ranks = zip(*([other.text for other in line.hypotheses] for line in lines))
    best, second, third = map("\n".join, ranks)
    status, answer = narrow.translate("\n".join(SENTENCES[:2]), alternatives=5)
    assert (status, answer["translatedText"]) == (200, best)
    assert answer["alternatives"] == [second, third]
    assert narrow.translate(SENTENCES[:2], alternatives="1")[1]["alternatives"] == [
        [other.text for other in line.hypotheses[1:2]] for line in lines
    ]
    *_, (_, done) = narrow.stream("\n".join(SENTENCES[:2]), alternatives=5)
    assert done["alternatives"] == answer["alternatives"]
    assert done["steps"] == done["tokens"] > 0
    assert "alternatives" not in narrow.translate(SENTENCES[0])[1]
    for wrong in ("many", -1):
        status, answer = narrow.translate(SENTENCES[0], alternatives=wrong)
        assert (status, answer["error"]) == (400, "alternatives: must be a number, 0 or more")


def test_a_port_in_use_is_named_before_models_are_loaded(
    world: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert serve.main([str(world), "--port", port]) == 1
        assert f"--host 127.0.0.1 --port {port}: Address already in use" in capfd.readouterr().err
    assert serve.main([str(world), "--host", "256.1.1.1"]) == 1
    assert "--host 256.1.1.1 --port 5000: " in capfd.readouterr().err


def test_workers_end_with_a_server_that_is_killed(narrow: Server) -> None:
    """Each would keep the models in memory. Nothing comes after this test of its server."""
    workers = children_of(parent_of_workers(narrow))
    assert workers
    narrow.process.kill()
    narrow.process.wait(60)
    end = time.monotonic() + 30
    while any(map(is_alive, workers)):
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A verifier of another direction."""
    return save_pair(tmp_path_factory.mktemp("other"), "de", "fr", seed=14) / "verifier.pt"


@pytest.fixture(scope="module")
def two(world: Path, other: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two models, and no keys."""
    server = start(world, tmp_path_factory.mktemp("two"), str(other))
    yield server
    server.process.terminate()
    server.process.wait(60)


def test_of_two_models_the_right_one_answers(
    two: Server, other: Path, expected: dict[str, str]
) -> None:
    (line,) = load_translator(other).translate(SENTENCES[:1])
    assert two.translate(SENTENCES[0], source="de", target="fr")[1]["translatedText"] == line.text
    assert two.translate(SENTENCES[0])[1]["translatedText"] == expected[SENTENCES[0]] != line.text
    status, answer = two.post("/detect", {"q": "w1"})
    assert (status, "several sources" in answer["error"]) == (400, True)


def test_sigterm_lets_requests_end(two: Server, expected: dict[str, str]) -> None:
    """Nothing comes after this test of its server."""
    lines = SENTENCES * 3
    with ThreadPoolExecutor() as pool:
        long = pool.submit(two.translate, lines)
        events = two.stream("\n".join(lines))
        first = next(events)
        while two.metric("specdec_open_requests") < 2:
            time.sleep(0.01)
        two.process.terminate()
        assert pieces_of([first, *events]) == "\n".join(expected[line] for line in lines)
        assert long.result()[1]["translatedText"] == [expected[line] for line in lines]


@pytest.mark.parametrize(
    ("models", "fault"),
    [
        (["nameless.pt"], "nameless.pt: does not name its languages; give --source-lang"),
        (["", "verifier.pt"], "verifier.pt: are both for en to de; give one of them"),
    ],
)
def test_models_that_cannot_be_loaded(
    models: list[str],
    fault: str,
    world: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("uvicorn.run", None)
    assert serve.main([*(str(world / name) for name in models), "--workers", "1"]) == 1
    *_, line = capfd.readouterr().err.splitlines()
    assert fault in line


def test_a_service_is_made_of_what_its_command_says(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def record(*arguments: Any) -> SimpleNamespace:
        made.extend(arguments)
        return SimpleNamespace(busy=0)

    monkeypatch.setattr("specdec_plugins.serve.app.Workers", record)
    flags = ["--workers", "3", "--threads", "2", "--precision", "int8", "--beam", "4"]
    flags += ["--max-characters", "7", "--timeout", "8", "--max-requests", "9"]
    applications: list[Any] = []

    def run(sockets: list[socket.socket]) -> None:
        assert sockets.pop().getsockname()[1] == 5000
        raise KeyboardInterrupt

    monkeypatch.setattr("uvicorn.Config", lambda app, **_: applications.append(app))
    monkeypatch.setattr("uvicorn.Server", lambda _: SimpleNamespace(run=run))
    monkeypatch.setattr(Service, "app", lambda self: self)
    tuned = "specdec_plugins.serve.app.as_tuned"
    monkeypatch.setattr(tuned, lambda settings, threads: (settings, threads))
    flags += ["--dictionaries", "elsewhere", "-s", "xx", "-t", "yy", "--as-transformer"]
    assert serve.main([str(world), *flags]) == 0
    (service,) = applications
    assert service.limits == Limits(characters=7, seconds=8, requests=9)
    ((settings, tuned_threads),), workers, threads = made
    assert (workers, threads, tuned_threads) == (3, 2, 2)
    assert (settings.source_lang, settings.target_lang) == ("xx", "yy")
    assert (settings.data, settings.as_transformer) == ("elsewhere", True)
    assert (settings.precision, settings.beam, settings.nbest) == ("int8", 4, 4)
