"""A running service with a random pair, and how to ask it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helpers.runs.inference_runs import SENTENCES, make_settings

from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.inference import load_translator

KEY = "a key with blanks"
#: Lines of one sentence or two.
OTHERS = ("w3 w4!", "w3 w4! w7", "w7 w2 w9")
LIBRARIES = ("starlette", "uvicorn", "sentencex", "prometheus_client")


@dataclass
class Server:
    """A running server."""

    url: str
    process: subprocess.Popen[str]
    log: Path

    def post(self, path: str, body: object, **headers: str) -> tuple[int, Any]:
        """Send JSON, or bytes as they are; return the status and the answer's JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data, {"Content-Type": "application/json", **headers}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def translate(self, q: str | list[str], **fields: Any) -> tuple[int, Any]:
        usual = {"q": q, "source": "en", "target": "de", "api_key": KEY}
        return self.post("/translate", {**usual, **fields})

    def stream(self, q: str, **fields: object) -> Iterator[tuple[str, Any]]:
        """Yield the names and the data of a stream's events, as they come."""
        body = {"q": q, "source": "en", "target": "de", "api_key": KEY, **fields}
        headers = {"Content-Type": "application/json"}
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/translate/stream", data, headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            assert response.headers["Content-Type"].startswith("text/event-stream")
            yield from events_of(line.decode() for line in response)

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(self.url + "/metrics", timeout=10) as response:
            text = response.read().decode()
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(world: Path, folder: Path, *flags: str) -> Server:
    """``flags`` may end with another model."""
    port, log = free_port(), folder / "log"
    (folder / "keys").write_text(f"other\n{KEY}\n")
    command = [sys.executable, "-m", "specdec_plugins.cli.serve", "--port", str(port)]
    command += ["--workers", "2", "--max-characters", "4000", *flags, str(world)]
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, text=True)
    server = Server(f"http://127.0.0.1:{port}", process, log)
    for _ in range(1800):
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(server.url + "/health", timeout=10):
                return server
        except OSError:
            time.sleep(0.1)
    raise AssertionError(log.read_text())


def events_of(lines: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield the names and the data of the events in a stream's lines."""
    rest = iter(lines)
    for name, data, blank in zip(rest, rest, rest, strict=True):
        assert not blank.strip()
        yield name.strip().removeprefix("event: "), json.loads(data.removeprefix("data: "))


def pieces_of(events: list[tuple[str, Any]]) -> str:
    """Return the text of the pieces, which are all but the last event."""
    assert {name for name, _ in events[:-1]} <= {"piece"}
    assert all(data["text"] for _, data in events[:-1])
    return "".join(data["text"] for _, data in events[:-1])


def children_of(process: int) -> list[int]:
    """Those of all its threads."""
    lists = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for children in lists for child in children.read_text().split()]


def is_alive(process: int) -> bool:
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def parent_of_workers(server: Server) -> int:
    """The process of which the workers are forks."""
    (parent,) = (
        child
        for child in children_of(server.process.pid)
        if b"forkserver" in Path(f"/proc/{child}/cmdline").read_bytes()
    )
    return parent


def kill_workers(server: Server) -> None:
    """Kill the processes that hold the models, at once."""
    for child in children_of(parent_of_workers(server)):
        os.kill(child, signal.SIGKILL)


def settle(server: Server) -> None:
    """Wait until no request is open, and no worker works."""
    for _ in range(100):
        if server.metric("specdec_busy_workers") == server.metric("specdec_open_requests") == 0:
            break
        time.sleep(0.1)
    assert server.metric("specdec_open_requests") == 0


def said(server: Server) -> str:
    """Return the log, without the traceback that Python prints where a worker is killed just when
    it takes a pipe; the service tries its sentence again."""
    taking = r"Traceback .*\n  File .*resource_sharer\.py.*\n(?:  .*\n)+\w+Error.*\n"
    return re.sub(taking, "", server.log.read_text())


@pytest.fixture(scope="session")
def server(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    for library in LIBRARIES:
        pytest.importorskip(library, reason=f"{library} is not installed (extra [serve])")
    folder = tmp_path_factory.mktemp("serve")
    server = start(world, folder, "--api-key-file", str(folder / "keys"))
    yield server
    parent = parent_of_workers(server)
    others = [parent, *children_of(parent)]
    server.process.terminate()
    # It takes nothing new, and ends, and so do its workers.
    assert server.process.wait(60) in (0, 128 + signal.SIGTERM, -signal.SIGTERM)
    end = time.monotonic() + 60
    while any(map(is_alive, others)):
        assert time.monotonic() < end
        time.sleep(0.05)
    log = said(server)
    assert not [word for word in (KEY, SENTENCES[0], "Traceback") if word in log], log


@pytest.fixture(scope="session")
def expected(world: Path) -> dict[str, str]:
    options = {"tokenizer": "moses", "bpe": "subword_nmt", "limits": GenerationLimits()}
    translator = load_translator(make_settings(world, **options))
    lines = [*SENTENCES, *OTHERS]
    return {line: result.text for line, result in zip(lines, translator.translate(lines))}
