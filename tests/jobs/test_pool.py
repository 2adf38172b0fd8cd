"""Workers and their shards, without Ray; tests/cli has the job as a whole."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from helpers.runs.jobs import Numberer

pytest.importorskip("ray", reason="Ray is not installed (extra [ray])")

from specdec_plugins.files.errors import InferenceError
from specdec_plugins.jobs import pool
from specdec_plugins.jobs.corpus import Shard, find_files, read_corpus
from specdec_plugins.jobs.pool import ShardTranslator


@pytest.fixture
def shard(tmp_path: Path) -> Shard:
    (tmp_path / "in.txt").write_text("w1\nw2\nw3\n")
    corpus = read_corpus(find_files(tmp_path / "in.txt")[0], tmp_path / "out", 2)
    return corpus["in.txt"][1]


def make_worker(translator: Any) -> ShardTranslator:
    worker = ShardTranslator.__new__(ShardTranslator)
    worker.seed, worker.translator = 1, translator
    return worker


def test_a_shard_is_translated_once(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the models that the job began with."""
    translator: Any = Numberer()
    translator.settings = "of other models"

    def check(checked: Shard, settings: Any) -> None:
        if settings == "of other models":
            raise InferenceError(settings)

    monkeypatch.setattr(pool, "check_models", check)
    with pytest.raises(InferenceError):
        make_worker(translator).translate(shard)
    assert not shard.done
    translator.settings = "of the job's"
    assert make_worker(translator).translate(shard) == 1
    assert Path(shard.output).read_text() == "3:w3\n"
    # Given it again, as after a worker's death, it does nothing: this one could not.
    assert make_worker(None).translate(shard) == 1
    assert [path.name for path in Path(shard.output).parent.iterdir()] == ["000000001.txt"]


@pytest.mark.parametrize(("address", "joined"), [(None, "local"), ("10.0.0.1:6379", None)])
def test_no_cluster_is_joined_unless_it_is_named(
    address: str | None, joined: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an address Ray follows a file that ``ray start`` left, and waits for what is gone."""
    asked: list[dict[str, object]] = []
    before = signal.getsignal(signal.SIGTERM)

    def init(**options: object) -> None:
        asked.append(options)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Ray's own

    monkeypatch.setattr(pool.ray, "init", init)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address is not None:
        monkeypatch.setenv("RAY_ADDRESS", address)
    pool._start()
    assert asked[0].get("address") == joined
    assert signal.getsignal(signal.SIGTERM) is before
