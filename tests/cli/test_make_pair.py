"""A pair made by one command, of a verifier that knows nothing of this plugin."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from specdec_plugins.cli import make_pair
from specdec_plugins.inference import Settings, load_translator
from specdec_plugins.inference.pair_folder import pair_settings


@pytest.fixture(scope="module")
def verifier(trained: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint beside its dictionaries; it reads segmented text."""
    folder = tmp_path_factory.mktemp("verifier")
    for path in (trained.verifier, *trained.data.glob("dict.*.txt")):
        shutil.copy(path, folder)
    return folder / trained.verifier.name


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "sources.en"
    draw = random.Random(3)
    lines = (
        " ".join(f"w{draw.randrange(20)}" for _ in range(draw.randint(2, 9))) for _ in range(150)
    )
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def make(verifier: Path, sources: Path, out: Path, *flags: str) -> int:
    languages = ("-s", "en", "-t", "de", "--cpu", "--quiet")
    return make_pair.main([str(verifier), str(sources), str(out), *languages, *flags])


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*.*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def made(verifier: Path, sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(out.parent))
        assert make(verifier, sources, out, "--updates", "6") == 0
    return out


def test_a_pair_that_translates_as_its_verifier(made: Path, sources: Path) -> None:
    lines = sources.read_text("utf-8").splitlines()[:10]
    said = []
    for strategy in ("AR", "specdec"):
        settings = Settings(**pair_settings(made / "pair"), strategy=strategy, precision="float64")
        said.append([one.text for one in load_translator(settings).translate(lines)])
    assert said[0] == said[1]
    card = (made / "README.md").read_text("utf-8")
    for text in ("150 lines of sources.en", "| 6 |", "AR by our loop"):
        assert text in card


def test_what_is_made_is_not_made_again(made: Path, verifier: Path, sources: Path) -> None:
    before = contents(made)
    assert make(verifier, sources, made, "--updates", "6") == 0
    assert contents(made) == before


def test_other_settings_are_refused(
    made: Path, verifier: Path, sources: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make(verifier, sources, made, "--updates", "7") == 1
    assert "was begun with other updates" in capsys.readouterr().err
