"""What CTranslate2 has on this processor, and what is said where it is not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from specdec_plugins.evaluation import ctranslate2_system
from specdec_plugins.evaluation.ctranslate2_system import (
    CTranslate2Job,
    check_installed,
    check_precisions,
    supported_precisions,
)


def test_precisions() -> None:
    pytest.importorskip("ctranslate2", reason="CTranslate2, of the extra [bench], is not here")
    found = supported_precisions()
    assert found[0] == "float32"
    check_precisions(found)
    assert not {"int8", "int8_float32"} <= set(found)
    with pytest.raises(ValueError, match=r"--ctranslate2 int8:gpu: after the colon .* avx512, mkl"):
        check_precisions(["int8:mkl", "int8:gpu"])
    with pytest.raises(ValueError, match=r"--ctranslate2 int3: must be one of .*float32"):
        check_precisions(["float32", "int3"])


def test_where_it_is_not_installed_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctranslate2_system, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"--ctranslate2: .* not installed: pip install .*bench"):
        check_installed()


@pytest.mark.parametrize(
    ("processor", "kernels"),
    [
        ("AMD EPYC (avx2, L3 8 MiB)", ["", ":mkl"]),
        ("AMD EPYC (avx512_vnni, avx512_bf16, L3 32 MiB)", ["", ":avx512", ":mkl"]),
        ("Intel Xeon (amx, avx512_vnni, avx512_bf16)", ["", ":avx512", ":unpacked"]),
    ],
)
def test_what_may_be_better_here_is_compared_too(
    processor: str, kernels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ctranslate2", reason="CTranslate2, of the extra [bench], is not here")
    monkeypatch.setattr(ctranslate2_system, "processor_name", lambda: processor)
    found = supported_precisions()
    assert [name.removeprefix("float32") for name in found if "float32" in name] == kernels


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
