"""Text is UTF-8 in every locale: outputs are the same, byte for byte."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from specdec_plugins.cli import inference

ROOT = Path(__file__).resolve().parent.parent
PAIR = ROOT / "checkpoints" / "multi30k.en-de"
TEXT = "Two girls from Zürich drink café au lait near the Müller façade, “slowly”.\n"


@pytest.fixture(scope="module")
def locale(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a Latin-1 locale, or where none can be made of an ASCII one."""
    folder = tmp_path_factory.mktemp("locales")
    made = ["localedef", "-i", "de_DE", "-f", "ISO-8859-1", str(folder / "de_DE.ISO-8859-1")]
    if shutil.which(made[0]) and subprocess.run(made, capture_output=True).returncode <= 1:
        return {"LC_ALL": "de_DE.ISO-8859-1", "LOCPATH": str(folder), "PYTHONUTF8": "0"}
    return {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_inference(locale: dict[str, str]) -> None:
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


def test_codes_that_are_not_utf8_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = tmp_path / "codes"
    codes.write_bytes("#version: 0.2\nä u</w>\n".encode("latin-1"))
    flags = f"--strategy AR --bpe subword_nmt --bpe-codes {codes} --cpu"
    assert inference.main([str(PAIR), "--AR-path", str(PAIR / "verifier.pt"), *flags.split()]) == 1
    assert f"{codes} is not UTF-8" in capsys.readouterr().err.splitlines()[-1]
