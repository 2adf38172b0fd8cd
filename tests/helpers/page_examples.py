"""The examples of docs/extending.md."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs/extending.md"
BLOCK = re.compile(r"^```python\n# (\S+\.py)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def page_examples() -> dict[str, str]:
    """Return the page's files by their paths in the repository."""
    return dict(BLOCK.findall(PAGE.read_text("utf-8")))
