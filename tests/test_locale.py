"""Text is UTF-8 in every locale: outputs are the same, byte for byte."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


def same(*command: object, locale: dict[str, str], stdin: str = TEXT) -> str:
    """What a command prints, in a UTF-8 locale as in another."""
    outputs = []
    for variables in ({"PYTHONUTF8": "1"}, locale):
        done = run(*command, stdin=stdin, **variables)
        assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    return outputs[0].decode("utf-8")


def test_inference(locale: dict[str, str]) -> None:
    output = same(
        *(sys.executable, "scripts/inference.py", PAIR, "--path", PAIR / "drafter.pt"),
        *("--AR-path", PAIR / "verifier.pt", "--tokenizer", "moses", "--bpe", "subword_nmt"),
        *("--cpu", "--quiet"),
        locale=locale,
    )
    assert "Mädchen" in output


@pytest.mark.slow
def test_recombine(locale: dict[str, str], tmp_path: Path) -> None:
    source = tmp_path / "train.en"
    source.write_text("ein Mädchen läuft schnell\nein Hund läuft weg\n", encoding="utf-8")
    assert "läuft" in same(sys.executable, "scripts/recombine.py", source, 3, locale=locale)


def test_fairseqs_own_commands_cut_alike_and_warn(locale: dict[str, str]) -> None:
    """They read and print in the locale's encoding, unless Python is told another."""
    done = [
        run(
            *(sys.executable, "-m", "fairseq_cli.interactive", PAIR),
            *("--user-dir", "specdec_plugins", "--task", "translation_specdec", "--cpu"),
            *("--path", f"{PAIR / 'drafter.pt'}:{PAIR / 'verifier.pt'}", "-s", "en", "-t", "de"),
            *("--beam", 1, "--bpe", "subword_nmt", "--bpe-codes", PAIR / "codes"),
            **variables,
        )
        for variables in ({"PYTHONUTF8": "1"}, {**locale, "PYTHONIOENCODING": "utf-8"})
    ]
    sources = [re.findall(r"^S-0.*$", one.stdout.decode("utf-8"), re.M) for one in done]
    assert sources[0] == sources[1] != []
    warned = [b"the locale is not UTF-8" in one.stdout + one.stderr for one in done]
    assert warned == [False, True]


@pytest.mark.slow
def test_prepare_data(locale: dict[str, str], tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    for lang in ("en", "de"):
        for split in ("train", "valid", "test"):
            (raw / f"{split}.{lang}").write_text(TEXT * 3, encoding="utf-8")
    for name, variables in (("utf", {"PYTHONUTF8": "1"}), ("other", locale)):
        variables = {**variables, "PYTHONIOENCODING": "latin-1"} if name == "other" else variables
        done = run(
            "scripts/prepare_data.sh", raw, tmp_path / name, "en", "de", 20, stdin="", **variables
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
    for file in (
        "codes",
        "bpe/train.de",
        "tok/train.en",
        "bin/dict.de.txt",
        "bin/train.en-de.de.bin",
    ):
        assert (tmp_path / "utf" / file).read_bytes() == (tmp_path / "other" / file).read_bytes()


def test_codes_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    codes = tmp_path / "codes"
    codes.write_bytes("#version: 0.2\nä u</w>\n".encode("latin-1"))
    done = run(
        *(sys.executable, "scripts/inference.py", PAIR, "--AR-path", PAIR / "verifier.pt"),
        *("--strategy", "AR", "--bpe", "subword_nmt", "--bpe-codes", codes, "--cpu"),
    )
    assert done.returncode == 1
    assert f"{codes} is not UTF-8" in done.stderr.decode("utf-8").splitlines()[-1]
