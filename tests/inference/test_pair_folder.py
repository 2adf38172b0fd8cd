"""The folder of a pair says what a run with it needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from inference_runs import SENTENCES

from specdec_plugins.cli import inference as script
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.inference import Settings
from specdec_plugins.inference.flags import make_settings
from specdec_plugins.inference.pair_folder import pair_settings, verifier_settings

pytest_plugins = ["inference_runs"]


def test_what_is_given_wins_over_the_folder(tmp_path: Path) -> None:
    (tmp_path / "codes").touch()
    settings = Settings.of_model(tmp_path, bpe="characters")
    assert (settings.tokenizer, settings.bpe) == ("moses", "characters")
    assert settings.path == str(tmp_path / "drafter.pt")


def test_segmentation_that_is_written_down_wins(tmp_path: Path) -> None:
    (tmp_path / "codes").touch()
    said = {"bpe": "fastbpe", "bpe_codes": "codes", "moses_source_lang": "en"}
    (tmp_path / "segmentation.json").write_text(json.dumps(said))
    settings = Settings.of_model(tmp_path)
    assert (settings.tokenizer, settings.bpe) == (None, "fastbpe")
    codes = str(tmp_path / "codes")
    assert settings.encoder_options == {"bpe_codes": codes, "moses_source_lang": "en"}


@pytest.mark.parametrize("content", ["{", "[" * 10**5, "[]", '{"bpe": 3}', "\xff", " " * 2**26])
def test_a_damaged_description_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "segmentation.json"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises((InferenceError, ValueError), match=f"{file}: "):
        pair_settings(tmp_path)


def test_what_make_pair_makes_is_a_pair(world: Path, tmp_path: Path) -> None:
    """OUT stands for OUT/pair, at every door."""
    pair = tmp_path / "pair"
    pair.mkdir()
    for path in world.iterdir():
        (pair / path.name).symlink_to(path)
    assert Settings.of_model(tmp_path) == Settings.of_model(pair)
    assert verifier_settings(tmp_path, None) == verifier_settings(pair, None)
    found, expected = (make_settings(script.parse([str(f), "--cpu"])) for f in (tmp_path, pair))
    assert found == expected


def test_a_pair_needs_no_more_than_its_folder(world: Path, tmp_path: Path) -> None:
    """It takes its models and its segmentation from there; a path given is taken as it was."""
    source, short, long = tmp_path / "in.txt", tmp_path / "short.txt", tmp_path / "long.txt"
    source.write_text("\n".join(SENTENCES) + "\n")
    common = ["--input-path", str(source), "--engine", "eager", "--quiet", "--output-path"]
    assert script.main([str(world), *common, str(short)]) == 0
    paths = ["--path", str(world / "drafter.pt"), "--AR-path", str(world / "verifier.pt")]
    segmentation = ["--tokenizer", "moses", "--bpe", "subword_nmt"]
    assert script.main([str(world), *common, str(long), *paths, *segmentation]) == 0
    assert short.read_text() == long.read_text()
