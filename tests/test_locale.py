"""Text is UTF-8 in every locale: outputs are the same, byte for byte."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAIR = ROOT / "checkpoints" / "multi30k.en-de"
TEXT = "Two girls from Zürich drink café au lait near the Müller façade, “slowly”.\n"


def test_inference(tmp_path: Path) -> None:
    """In a Latin-1 locale, or where none can be made in an ASCII one."""
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    made = ["localedef", "-i", "de_DE", "-f", "ISO-8859-1", str(tmp_path / "de_DE.ISO-8859-1")]
    if shutil.which(made[0]) and subprocess.run(made, capture_output=True).returncode <= 1:
        locale |= {"LC_ALL": "de_DE.ISO-8859-1", "LOCPATH": str(tmp_path)}
    flags = ["--cpu", "--quiet", "--engine", "eager"]
    done = subprocess.run(
        [sys.executable, "scripts/inference.py", str(PAIR), *flags],
        input=TEXT.encode(),
        capture_output=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, **locale},
    )
    output = done.stdout.decode("utf-8")
    assert output.count("\n") == 1
    assert output.startswith("Zwei Mädchen trinken ")
