"""CTranslate2's precisions and kernels."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from specdec_plugins.evaluation import ctranslate2_system
from specdec_plugins.evaluation.ctranslate2_system import CTranslate2Job, check_compute_type


@pytest.mark.parametrize("name", ["int8:gpu", "int3"])
def test_what_it_does_not_have(name: str) -> None:
    pytest.importorskip("ctranslate2", reason="CTranslate2, of the extra [bench], is not here")
    check_compute_type("float32")
    check_compute_type("int8:mkl")
    with pytest.raises(ValueError, match=f"ctranslate2@{name}: "):
        check_compute_type(name)


def test_where_it_is_not_installed_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctranslate2_system, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"not installed; pip install .*bench"):
        check_compute_type("int8")


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
