"""What CTranslate2 has on this processor, and what is said where it is not."""

from __future__ import annotations

import pytest

from specdec_plugins.evaluation import ctranslate2_system
from specdec_plugins.evaluation.ctranslate2_system import (
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
    with pytest.raises(ValueError, match=r"--ctranslate2 int3: must be one of .*float32"):
        check_precisions(["float32", "int3"])


def test_where_it_is_not_installed_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctranslate2_system, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"--ctranslate2: .* not installed: pip install .*bench"):
        check_installed()
