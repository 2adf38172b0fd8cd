"""Text is UTF-8 in every locale: outputs are the same, byte for byte."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fairseq.data import Dictionary
from subword_nmt.apply_bpe import BPE

from specdec_plugins.cli import inference
from specdec_plugins.inference import Settings, load_translator

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


def run(
    *command: object, stdin: str = TEXT, **variables: str
) -> subprocess.CompletedProcess[bytes]:
    tools = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": tools + os.pathsep + os.environ["PATH"], **variables}
    return subprocess.run(
        [str(part) for part in command],
        input=stdin.encode(),
        capture_output=True,
        check=False,
        cwd=ROOT,
        env=environment,
    )


def test_inference(locale: dict[str, str]) -> None:
    pair = {"path": str(PAIR / "drafter.pt"), "ar_path": str(PAIR / "verifier.pt")}
    settings = Settings(str(PAIR), **pair, tokenizer="moses", bpe="subword_nmt", engine="eager")
    (expected,) = load_translator(settings).translate([TEXT.rstrip("\n")])
    assert "Mädchen" in expected.text
    done = run(
        *(sys.executable, "scripts/inference.py", PAIR, "--path", PAIR / "drafter.pt"),
        *("--AR-path", PAIR / "verifier.pt", "--tokenizer", "moses", "--bpe", "subword_nmt"),
        *("--cpu", "--quiet", "--engine", "eager"),
        **locale,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
    assert done.stdout.decode("utf-8") == expected.text + "\n"


@pytest.mark.slow
def test_fairseqs_own_commands_cut_alike_and_warn(locale: dict[str, str]) -> None:
    """They read and print in the locale's encoding, unless Python is told another."""
    with open(PAIR / "codes", encoding="utf-8") as codes:
        cut = BPE(codes).process_line(TEXT.rstrip("\n"))
    done = run(
        *(sys.executable, "-m", "fairseq_cli.interactive", PAIR),
        *("--user-dir", "specdec_plugins", "--task", "translation_specdec", "--cpu"),
        *("--path", f"{PAIR / 'drafter.pt'}:{PAIR / 'verifier.pt'}", "-s", "en", "-t", "de"),
        *("--beam", 1, "--bpe", "subword_nmt", "--bpe-codes", PAIR / "codes"),
        **{**locale, "PYTHONIOENCODING": "utf-8"},
    )
    (source,) = re.findall(r"^S-0\t(.*)$", done.stdout.decode("utf-8"), re.M)
    words = Dictionary.load(str(PAIR / "dict.en.txt"))
    known = [word if words.index(word) != words.unk() else "<unk>" for word in cut.split()]
    assert source.split() == known
    assert b"the locale is not UTF-8" in done.stdout + done.stderr


def test_codes_that_are_not_utf8_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = tmp_path / "codes"
    codes.write_bytes("#version: 0.2\nä u</w>\n".encode("latin-1"))
    flags = f"--strategy AR --bpe subword_nmt --bpe-codes {codes} --cpu"
    assert inference.main([str(PAIR), "--AR-path", str(PAIR / "verifier.pt"), *flags.split()]) == 1
    assert f"{codes} is not UTF-8" in capsys.readouterr().err.splitlines()[-1]
