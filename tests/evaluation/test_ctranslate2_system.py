"""CTranslate2's precisions and kernels."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from specdec_plugins.evaluation.ctranslate2_system import CTranslate2Job


@pytest.mark.parametrize("name", ["int8:gpu", "int3"])
def test_what_it_does_not_have(name: str, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2", reason="CTranslate2, of the extra [bench], is not here")
    with pytest.raises((ValueError, RuntimeError)):
        CTranslate2Job(str(tmp_path), name, 1, [], [], 0).load()


def test_kernels_are_chosen_before_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ctranslate2", reason="CTranslate2, of the extra [bench], is not here")
    monkeypatch.setenv("CT2_USE_MKL", "")
    monkeypatch.setenv("CT2_USE_EXPERIMENTAL_PACKED_GEMM", "")
    made: dict[str, Any] = {}

    def translator(*_: Any, **given: Any) -> None:
        made.update(given, mkl=os.environ["CT2_USE_MKL"])

    monkeypatch.setattr("ctranslate2.Translator", translator)
    CTranslate2Job(str(tmp_path), "int8:mkl", 1, [], [], 0).load()
    assert (made["compute_type"], made["mkl"]) == ("int8", "1")
