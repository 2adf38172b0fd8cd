"""The service as an application of Ray Serve: ``serve run specdec_plugins.serve.replicas:app``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.runs.served import LIBRARIES, SENTENCES, Server, children_of, is_alive

for library in LIBRARIES:
    pytest.importorskip(library, reason=f"{library} is not installed (extra [serve])")

APP = "specdec_plugins.serve.replicas:app"


@pytest.mark.parametrize(
    ("args", "fault"),
    [
        ({}, "models=PATH: is missing"),
        ({"models": "pair", "beams": "5"}, "beams=: is none of models, replicas, precision"),
        ({"models": "pair", "beam": "five"}, "five"),
    ],
)
def test_arguments(args: dict[str, str], fault: str) -> None:
    from specdec_plugins.serve.replicas import app

    with pytest.raises(ValueError, match=fault):
        app(args)


def test_each_replica_builds_the_service(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in of Ray Serve, which notes what it is asked for."""
    from specdec_plugins.serve.app import Limits, Service
    from specdec_plugins.serve.replicas import app

    asked: dict[str, Any] = {}

    def ingress(build: Callable[[], Any]) -> Callable[[], Callable[[], Any]]:
        return lambda: build

    def deployment(build: Callable[[], Any], **options: Any) -> SimpleNamespace:
        asked.update(options)
        return SimpleNamespace(bind=lambda: build)

    stand_in = SimpleNamespace(ingress=ingress, deployment=deployment)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(serve=stand_in))
    monkeypatch.setitem(sys.modules, "ray.serve", stand_in)
    monkeypatch.setattr(Service, "app", lambda self: self)
    build = app({"models": f"{world},{world}", "replicas": "3", "beam": "2", "source_lang": "xx"})
    assert asked["num_replicas"] == 3
    assert asked["max_ongoing_requests"] > Limits().requests, "so that the service answers 429"
    monkeypatch.setattr("specdec_plugins.serve.app.Workers", record := Recorder())
    service = build()
    assert service.limits == Limits()
    (settings, *more) = record.arguments
    assert [(item.beam, item.source_lang) for item in settings] == [(2, "xx")] * 2
    assert more == [1, 1]


class Recorder:
    """Workers that note what they are made of."""

    busy = 0

    def __call__(self, *arguments: Any) -> Recorder:
        self.arguments = arguments
        return self


@pytest.mark.slow
def test_two_replicas(world: Path, expected: dict[str, str], tmp_path: Path) -> None:
    """Requests at the same time are answered with the words of one translator, and go on to be
    answered when a replica dies, whose worker ends with it."""
    for library in ("ray", "grpc", "fastapi"):
        pytest.importorskip(library, reason="Ray Serve is not installed (extra [ray-serve])")
    command = [
        sys.executable,
        "-m",
        "ray.serve.scripts",
        "run",
        "specdec_plugins.serve.replicas:app",
    ]
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [*command, f"models={world}", "replicas=2"],
            stdout=file,
            stderr=file,
            env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
        )
    server = Server("http://127.0.0.1:8000", process, log)
    try:
        wait_for(log, "is ready at")

        def check() -> None:
            with ThreadPoolExecutor(8) as pool:
                answers = list(pool.map(server.translate, SENTENCES[:3] * 5))
            texts = [answer["translatedText"] for status, answer in answers if status == 200]
            assert texts == [expected[line] for line in SENTENCES[:3] * 5]

        check()
        ids = replicas()
        assert len(ids) == 2
        (forks,) = (child for child in children_of(ids[0]) if "forkserver" in command_of(child))
        workers = children_of(forks)
        assert workers
        os.kill(ids[0], signal.SIGKILL)
        end = time.monotonic() + 120
        while ids[0] in replicas() or len(replicas()) < 2:  # until another one stands in its place
            assert time.monotonic() < end
            time.sleep(0.5)
        check()
        assert not any(map(is_alive, workers))
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def wait_for(log: Path, said: str) -> None:
    end = time.monotonic() + 180
    while said not in log.read_text():
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.5)


def command_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return ""


def replicas() -> list[int]:
    """The processes of the replicas, by the names that Ray gives them."""
    ids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [number for number in ids if "ServeReplica:default:specdec" in command_of(number)]
