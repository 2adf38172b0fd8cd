"""Lines of a stream, and the drafts beside them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.lines import InputLines


@pytest.mark.parametrize(
    ("drafts", "fault"),
    [
        ("1\n2\n", ""),
        ("1\n2\n3\n", "has more lines than standard input"),
        ("1\n", "no line 2"),
    ],
)
def test_a_stream_has_as_many_lines_as_its_drafts(drafts: str, fault: str, tmp_path: Path) -> None:
    """All lines before the fault are there, and it is no fault that passes."""
    (tmp_path / "drafts").write_text(drafts)
    lines = InputLines(io.BytesIO(b"a\nb\n"))
    with InputLines.open(str(tmp_path / "drafts")) as lines.drafts:
        assert [line.draft for line in lines] == drafts.split()[:2]
        if not fault:
            lines.check("; go on")
            return
        with pytest.raises(InferenceError, match=rf"drafts: {fault}$"):
            lines.check("; go on")
