"""Folders of strangers, and damaged ones: one line that names the file, and nothing is run."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.models.folders import make_bart, make_m2m, make_marian, rewrite, write

from specdec_plugins.files.errors import SpecdecError
from specdec_plugins.inference import Settings, load_translator


class Planted:
    """Makes a folder where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("marian")
    make_marian(folder)
    return folder


@pytest.fixture
def folder(marian: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(marian, tmp_path / "copy"))


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    weights = {"model.shared.weight": torch.ones(2, 2), "planted": Planted(folder / "ran")}
    torch.save(weights, folder / "pytorch_model.bin")


def indexed(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        index = {"weight_map": {"model.shared.weight": name}}
        write(folder / "model.safetensors.index.json", index)

    return change


def headed(size: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", size) + b"{" * 100)

    return change


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def holding(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content, "utf-8")


def having(name: str, **values: Any) -> Callable[[Path], None]:
    return lambda folder: rewrite(folder / name, **values)


CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "pickle": (pickled, "pytorch_model.bin"),
    "shard-elsewhere": (indexed("../../secret.safetensors"), "index.json"),
    "absolute-shard": (indexed("/etc/passwd"), "index.json"),
    "no-shard": (indexed("model-1.safetensors"), "model-1.safetensors"),
    "header-of-1-GB": (headed(1 << 30), "model.safetensors"),
    "header-of-2-EB": (headed(1 << 61), "model.safetensors"),
    "no-weights": (without("model.safetensors"), "pytorch_model.bin"),
    "no-vocabulary": (without("vocab.json"), "vocab.json"),
    "no-pieces": (without("source.spm"), "source.spm"),
    "damaged-pieces": (holding("source.spm", "no model"), "source.spm"),
    "no-json": (holding("config.json", "{"), "config.json"),
    "deep-json": (holding("config.json", "[" * 100_000), "config.json"),
    "a-list": (holding("vocab.json", "[1, 2]"), "vocab.json"),
    "huge-number": (holding("vocab.json", f'{{"a": {10**30}}}'), "vocab.json"),
    "t5": (having("config.json", model_type="t5"), "config.json"),
    "pegasus-x": (having("config.json", model_type="pegasus_x"), "config.json"),
    "odd-type": (having("config.json", model_type=["marian"]), "config.json"),
    "other-activation": (having("config.json", activation_function="tanh"), "config.json"),
    "more-tokens": (having("config.json", vocab_size=80, decoder_vocab_size=80), "config.json"),
    "fewer-tokens": (having("config.json", vocab_size=40, decoder_vocab_size=40), "config.json"),
    "huge-layers": (having("config.json", encoder_layers=10**9), "config.json"),
    "other-widths": (having("config.json", encoder_ffn_dim=80), "copy"),
    "more-layers": (having("config.json", decoder_layers=3), "copy"),
    "no-heads": (having("config.json", encoder_attention_heads=0), "config.json"),
    "start-elsewhere": (having("generation_config.json", decoder_start_token_id=99), "config.json"),
    "negative-start": (
        having("generation_config.json", decoder_start_token_id=-3),
        "generation_config.json",
    ),
    "endless": (having("generation_config.json", max_length=10**30), "generation_config.json"),
    "no-penalty": (
        having("generation_config.json", repetition_penalty=-1),
        "generation_config.json",
    ),
    "several-starts": (
        having("generation_config.json", decoder_start_token_id=[1, 2]),
        "generation_config.json",
    ),
}


BART: dict[str, tuple[Callable[[Path], object], str]] = {
    "no-merges": (without("merges.txt"), "merges.txt"),
    "odd-merges": (holding("merges.txt", "a b c\nd"), "merges.txt"),
    "merges-of-bytes": (lambda folder: (folder / "merges.txt").write_bytes(b"\xff"), "merges.txt"),
    "few-pieces": (holding("vocab.json", '{"<s>": 0, "<unk>": 3, "a": 4}'), "merges.txt"),
    "forced-word": (
        having("generation_config.json", forced_bos_token_id=9),
        "forced_bos_token_id 9",
    ),
    "no-start": (
        lambda folder: [
            rewrite(folder / name, decoder_start_token_id=None)
            for name in ("config.json", "generation_config.json")
        ],
        "config.json",
    ),
}


def refused(folder: Path, named: str) -> None:
    """Assert that a folder is refused in one line, which has some words, and that nothing ran."""
    with pytest.raises((SpecdecError, ValueError)) as raised:
        load_translator(Settings.of_model(folder, strategy="AR", engine="eager"))
    message = str(raised.value)
    assert isinstance(raised.value, SpecdecError)
    assert named in message
    assert "\n" not in message
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("case", CASES)
def test_one_line_names_the_file(case: str, folder: Path) -> None:
    change, named = CASES[case]
    change(folder)
    refused(folder, named)


@pytest.mark.parametrize("case", BART)
def test_a_damaged_bart(case: str, tmp_path: Path) -> None:
    make_bart(tmp_path)
    change, named = BART[case]
    change(tmp_path)
    refused(tmp_path, named)


def test_infinite_weights(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    weights["final_logits_bias"][0, 3] = float("nan")
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(SpecdecError, match="final_logits_bias"):
        load_translator(Settings.of_model(folder, strategy="AR", engine="eager"))


def test_an_unknown_language_is_named(tmp_path: Path) -> None:
    make_m2m(tmp_path)
    # A file may state the languages' numbers, too.
    (tmp_path / "special_tokens_map.json").unlink()
    size = len(json.loads((tmp_path / "vocab.json").read_text("utf-8")))
    languages = {f"__{name}__": size + i for i, name in enumerate(("af", "am", "ar"))}
    write(tmp_path / "added_tokens.json", languages)
    settings = {"strategy": "AR", "engine": "eager", "source_lang": "am"}
    assert load_translator(Settings.of_model(tmp_path, target_lang="ar", **settings))
    with pytest.raises(SpecdecError, match="af, am, ar"):
        load_translator(Settings.of_model(tmp_path, target_lang="de", **settings))
    with pytest.raises(SpecdecError, match="--source-lang and --target-lang"):
        load_translator(Settings.of_model(tmp_path, **settings))
