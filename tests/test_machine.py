"""The processor's name, free cores, and children."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from specdec_plugins import machine
from specdec_plugins.machine import (
    cache_folder,
    choose_threads,
    processor_name,
    python_program,
)

XEON = "Intel(R) Xeon(R) Platinum 8480 CPU"


def test_a_processor_is_named_by_what_it_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = "avx2 avx512f avx512_bf16 avx512_vnni amx_tile amx_bf16"
    entry = f"processor\t: 0\nmodel name\t: {XEON}\nflags\t\t: {flags}\npower management:\n\n"
    texts = iter([entry * 2, "107520K\n"])
    monkeypatch.setattr(Path, "read_text", lambda *_: next(texts))
    name = f"{XEON} (amx, avx512_vnni, avx512_bf16, L3 105 MiB)"
    assert processor_name.__wrapped__() == name


def test_a_user_without_a_home_has_a_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the number that a container is given; whether it can be written to is seen later."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    assert cache_folder().is_absolute()


STAT = "cpu  {0} 0 0 0\ncpu0 {0} {1} 3 0 9 1 1 0 0 0\ncpu1 5 0 0 {0} 0 0 0 0 0 0\nintr 1\n"


@pytest.mark.parametrize(
    ("user", "nice", "threads"), [(20, 7, 1), (2, 7, 2), (2, 20, 2), (99, 0, 1)]
)
def test_no_more_threads_than_free_cores(
    user: int, nice: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two, watched for 20 ticks; processes that yield to others do not count."""
    texts = iter([STAT.format(5, 5), STAT.format(5 + user, 5 + nice)] * 2)
    monkeypatch.setattr(Path, "read_text", lambda *_: next(texts))
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(machine.os, "sysconf", lambda _: 100)
    monkeypatch.setattr(machine.time, "sleep", lambda _: None)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        choose_threads()
        assert torch.get_num_threads() == 2
        monkeypatch.delenv("OMP_NUM_THREADS")
        choose_threads()
        assert torch.get_num_threads() == threads
        monkeypatch.setattr(Path, "read_text", lambda *_: "nothing\n\n")
        choose_threads()
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_children_import_nothing_from_the_current_folder(tmp_path: Path) -> None:
    names = ("json", "sacrebleu", "specdec_plugins")
    for name in names:
        (tmp_path / f"{name}.py").write_text("print('foreign')", "utf-8")
    program = python_program(f"import sys, {', '.join(names)}; print(*sys.argv[1:])", 7)
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "7\n", done.stderr
