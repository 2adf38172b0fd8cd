"""The folder of a pair says what a run with it needs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specdec_plugins.cli import inference as script
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.inference import Settings, load_translator
from specdec_plugins.inference.flags import make_settings
from specdec_plugins.inference.pair_folder import pair_settings, verifier_settings


def test_settings_win_over_a_description_and_that_over_names_of_files(tmp_path: Path) -> None:
    (tmp_path / "codes").touch()
    settings = Settings.of_model(tmp_path, bpe="characters")
    assert (settings.tokenizer, settings.bpe) == ("moses", "characters")
    assert settings.path == str(tmp_path / "drafter.pt")
    described = {"bpe": "fastbpe", "bpe_codes": "codes", "moses_source_lang": "en"}
    (tmp_path / "segmentation.json").write_text(json.dumps(described))
    settings = Settings.of_model(tmp_path)
    assert (settings.tokenizer, settings.bpe) == (None, "fastbpe")
    codes = str(tmp_path / "codes")
    assert settings.encoder_options == {"bpe_codes": codes, "moses_source_lang": "en"}


@pytest.mark.parametrize("content", ["{", "[" * 10**5, "[]", '{"bpe": 3}', "\xff", " " * 2**26])
def test_a_damaged_description_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "segmentation.json").write_bytes(content.encode("latin-1"))
    with pytest.raises((InferenceError, ValueError)):
        pair_settings(tmp_path)


def test_a_pair_needs_no_more_than_its_folder(world: Path, tmp_path: Path) -> None:
    """It has its models and segmentation; OUT of make-pair stands for OUT/pair."""
    pair = tmp_path / "pair"
    pair.symlink_to(world)
    assert Settings.of_model(tmp_path) == Settings.of_model(pair)
    assert verifier_settings(tmp_path, None) == verifier_settings(pair, None)
    found, expected = (make_settings(script.parse([str(f), "--cpu"])) for f in (tmp_path, pair))
    assert found == expected
    flags = f"--path {world}/drafter.pt --AR-path {world}/verifier.pt --tokenizer moses"
    flags += f" --bpe subword_nmt --bpe-codes {world}/codes"
    lines = (f"{world} --cpu {more}".split() for more in ("", flags))
    described, whole = (make_settings(script.parse(line)) for line in lines)
    shared = {"encoder_options": {}, "drafter_named": True}
    assert replace(whole, **shared) == replace(described, **shared)


def test_a_verifiers_checkpoint_is_a_model_from_python_too(world: Path) -> None:
    alone = Settings.of_model(world / "verifier.pt")
    assert alone == Settings.of_model(world, path=None, drafter_named=True)


def test_a_folder_of_a_verifier_is_one_alone(world: Path, tmp_path: Path) -> None:
    """With options that a drafter has, too."""
    for path in world.iterdir():
        if path.name != "drafter.pt":
            (tmp_path / path.name).symlink_to(path)
    settings = Settings.of_model(tmp_path, block_size=4, precision="float64", engine="eager")
    assert settings.path is None
    alone = Settings.of_model(world / "verifier.pt", precision="float64", engine="eager")
    line = ["A dog runs ."]
    (first,), (second,) = (load_translator(item).translate(line) for item in (settings, alone))
    assert first.tokens == second.tokens


def test_a_model_is_loaded_with_options_by_name(world: Path) -> None:
    """They win over a path's settings, and over those that are given."""
    translator = load_translator(str(world), batch=3, engine="eager")
    assert (translator.settings.batch, translator.engine) == (3, "eager")
    assert load_translator(translator.settings, batch=5).settings.batch == 5
    with pytest.raises(TypeError, match="batches"):
        load_translator(world, batches=5)


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InferenceError, match="mine: no such file or folder"):
        make_settings(script.parse([str(tmp_path / "mine"), "--cpu"]))
