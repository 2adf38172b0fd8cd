from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from specdec_plugins.inference import threads


@pytest.fixture(autouse=True)
def _two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "cores", lambda: 2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("free", [1, 2, 4])
def test_no_more_threads_than_free_cores(
    free: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(threads, "free_cores", lambda: free)
    threads.choose_threads()
    assert torch.get_num_threads() == min(free, 2)
    warned = "others compute on 1 of 2 cores: by 1 thread; OMP_NUM_THREADS=2 takes all"
    assert caplog.messages == ([warned] if free == 1 else [])


def test_a_number_that_was_asked_for_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr(threads, "free_cores", lambda: 1)
    threads.choose_threads()
    assert torch.get_num_threads() == 2
