"""The service as an application of Ray Serve: ``serve run specdec_plugins.serve.replicas:app``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers.runs.served import LIBRARIES, SENTENCES, Server

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


@pytest.mark.slow
def test_two_replicas(world: Path, expected: dict[str, str], tmp_path: Path) -> None:
    """Requests at the same time are answered by both, with the words of one translator; and go on
    to be answered when a replica dies."""
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
        os.kill(ids[0], signal.SIGKILL)
        end = time.monotonic() + 120
        while ids[0] in replicas() or len(replicas()) < 2:  # until another one stands in its place
            assert time.monotonic() < end
            time.sleep(0.5)
        check()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def wait_for(log: Path, said: str) -> None:
    end = time.monotonic() + 180
    while said not in log.read_text():
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.5)


def replicas() -> list[int]:
    """The processes of the replicas, by the names that Ray gives them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if b"ServeReplica:default:specdec" in command:
            found.append(int(path.parent.name))
    return found
