"""A thousand hostile requests: none is answered by a fault of the service, none stops it."""

from __future__ import annotations

import json
import random
import re
import socket
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from helpers.runs.inference_runs import SENTENCES
from helpers.runs.served import KEY, LIBRARIES, Server, kill_workers, said, settle, start

REQUESTS = 1000
#: Seconds in which a request that is sent at once has its answer.
PATIENCE = 60
PATHS = ("/translate", "/translate/stream", "/v2/translate", "/detect", "/v2/languages", "/nowhere")
KINDS = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data", "", "\xff")
TEXTS = ("w1 \0 w2", "\ud800 w1", "w1\u2028w2", "\u202e w1", "w1 " * 1000, "\n" * 3000, "", "😀 w2")
VALUES: tuple[object, ...] = (
    None,
    True,
    -1,
    1e400,
    [],
    {},
    [[]],
    {"a": [1]},
    "de",
    "EN-US",
    "\0",
    9**99,
)


def exchange(server: Server, *parts: bytes, pause: float = 0, half: bool = False) -> int:
    """Send bytes as they are; return the answer's status, or 0 if the connection was closed."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as client:
        try:
            for part in parts:
                client.sendall(part)
                time.sleep(pause)
            if half:
                client.shutdown(socket.SHUT_WR)
            answer = client.recv(4096)
            while answer and client.recv(65536):
                pass
        except (BrokenPipeError, ConnectionResetError):  # it does not read on
            return 0
    match = re.match(rb"HTTP/1.1 (\d+)", answer)
    return int(match[1]) if match else 0


def head(path: str, length: int, kind: str = "application/json", method: str = "POST") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", "Connection: close"]
    lines += [f"Content-Type: {kind}", f"Content-Length: {length}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def some_fields(draw: random.Random) -> dict[str, Any]:
    fields: dict[str, object] = {"source": "en", "target": "de", "target_lang": "DE"}
    fields |= {"q": draw.choice(TEXTS), "text": [draw.choice(TEXTS)], "api_key": KEY}
    for _ in range(draw.randrange(3)):
        fields[draw.choice([*fields, "format", "alternatives"])] = draw.choice(VALUES)
    return fields


def body_request(server: Server, draw: random.Random) -> int:
    """Of wrong types, cut off, changed, or of any bytes."""
    body = json.dumps(some_fields(draw)).encode()
    damage = draw.randrange(4)
    if damage == 0:
        body = body[: draw.randrange(len(body))]
    elif damage == 1:
        place = draw.randrange(len(body))
        body = body[:place] + draw.randbytes(3) + body[place + 3 :]
    elif damage == 2:
        body = draw.randbytes(draw.randrange(300))
    kind = KINDS[0] if draw.random() < 0.7 else draw.choice(KINDS)
    return exchange(server, head(draw.choice(PATHS), len(body), kind), body)


def deep_request(server: Server, draw: random.Random) -> int:
    depth = draw.choice([900, 20_000])
    body = b'{"q": ' + b"[" * depth + b"]" * depth + b"}"
    return exchange(server, head(draw.choice(PATHS), len(body)), body)


def large_request(server: Server, draw: random.Random) -> int:
    body = json.dumps({**some_fields(draw), "q": "w1 " * 3_500_000}).encode()
    return exchange(server, head(draw.choice(PATHS[:3]), len(body)), body)


def slow_request(server: Server, draw: random.Random) -> int:
    body = json.dumps(some_fields(draw)).encode()
    parts = [body[i : i + 1] for i in range(min(len(body), 40))]
    return exchange(server, head(draw.choice(PATHS), len(body)), *parts, pause=0.05, half=True)


def half_request(server: Server, draw: random.Random) -> int:
    """One that ends within its head or its body, or lies about its length."""
    body = json.dumps(some_fields(draw)).encode()
    whole = head(draw.choice(PATHS), len(body) + draw.choice([0, 0, 100, -9]))
    cut = draw.choice([draw.randrange(len(whole)), len(whole) + draw.randrange(len(body))])
    return exchange(server, (whole + body)[:cut], half=True)


def leaving_request(server: Server, draw: random.Random) -> int:
    """One whose client is gone before its answer."""
    fields = {**some_fields(draw), "q": "\n".join(SENTENCES), "source": "en", "target": "de"}
    body = json.dumps(fields).encode()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as client:
        client.sendall(head(draw.choice(PATHS[:2]), len(body)) + body)
        client.settimeout(draw.choice([0.01, 0.1, 0.3]))
        try:
            client.recv(100)
        except TimeoutError:
            return 0
    return 0


def murder(server: Server, draw: random.Random) -> int:
    kill_workers(server)
    return 0


SORTS: dict[Callable[[Server, random.Random], int], int] = {
    body_request: 60,
    deep_request: 6,
    large_request: 2,
    slow_request: 5,
    half_request: 15,
    leaving_request: 12,
}
"""How many of a hundred requests are of a sort."""


def memory(server: Server) -> tuple[int, int]:
    """Return the mebibytes of the service's own process, and its open files."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    match = re.search(r"VmRSS:\s+(\d+)", status)
    assert match is not None
    return int(match[1]) // 1024, len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


@pytest.mark.slow
def test_a_thousand_requests(world: Path, tmp_path: Path, expected: dict[str, str]) -> None:
    for library in LIBRARIES:
        pytest.importorskip(library, reason=f"{library} is not installed (extra [serve])")
    server = start(world, tmp_path, "--api-key-file", str(tmp_path / "keys"), "--timeout", "20")
    draw = random.Random(80)
    sorts = draw.choices([*SORTS], [*SORTS.values()], k=REQUESTS)
    for place in range(REQUESTS // 10, REQUESTS, REQUESTS // 5):
        sorts[place] = murder
    seeds = [random.Random(number) for number in range(REQUESTS)]
    statuses: Counter[int] = Counter()
    slowest = 0.0
    memories: list[tuple[int, int]] = []

    def ask(number: int) -> tuple[int, float]:
        begin = time.monotonic()
        return sorts[number](server, seeds[number]), time.monotonic() - begin

    try:
        with ThreadPoolExecutor(8) as pool:
            for first in range(0, REQUESTS, REQUESTS // 5):
                for status, seconds in pool.map(ask, range(first, first + REQUESTS // 5)):
                    statuses[status] += 1
                    slowest = max(slowest, seconds)
                settle(server)
                memories.append(memory(server))
        print(dict(statuses), f"slowest {slowest:.1f} s; MiB and files", memories)
        assert set(statuses) <= {0, 200, 400, 403, 404, 405, 408, 413, 429, 504}
        assert "Traceback" not in said(server)
        assert slowest < PATIENCE
        # Workers have died by the second look, so that all is set up that passes pipes to them.
        first_memory, first_files = memories[1]
        last_memory, last_files = memories[-1]
        assert last_memory <= first_memory + 20
        assert last_files <= first_files + 8
        assert server.translate(SENTENCES[0])[1]["translatedText"] == expected[SENTENCES[0]]
    finally:
        server.process.terminate()
        server.process.wait(60)
