"""Damaged and oversized files: found before anything is built of them."""

from __future__ import annotations

import pickle
import pickletools
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from test_loading import complaint, make_state, make_task, save_changed

from specdec_plugins.checkpoints.archive import check_weights
from specdec_plugins.checkpoints.loading import load_model, load_state
from specdec_plugins.files.errors import CheckpointError


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint.pt"
    torch.save(make_state(make_task()), path)
    return path


class TestDamage:
    @pytest.mark.parametrize("padding", [0, 1 << 20])
    def test_an_old_pickle_without_its_numbers(self, checkpoint: Path, padding: int) -> None:
        """Else they would be whatever lies in memory."""
        state = torch.load(checkpoint, weights_only=False)
        torch.save(state, checkpoint, _use_new_zipfile_serialization=False)
        assert load_state(checkpoint)["model"].keys() == state["model"].keys()
        with open(checkpoint, "rb") as file:
            for _ in ("magic number", "protocol", "system", "checkpoint"):
                list(pickletools.genops(file))
            end = file.tell()
        whole = checkpoint.read_bytes()
        checkpoint.write_bytes(whole[:end] + pickle.dumps([], protocol=2) + bytes(padding))
        assert "damaged" in complaint(checkpoint)

    def test_any_bytes(self, checkpoint: Path) -> None:
        """Wherever a file is damaged, it is refused, or what is in it is unharmed."""
        good, numbers = checkpoint.read_bytes(), random.Random(2)
        before = load_state(checkpoint)["model"]
        for _ in range(150):
            content = bytearray(good)
            for _ in range(numbers.choice([1, 1, 10])):
                content[numbers.randrange(len(good))] = numbers.randrange(256)
            checkpoint.write_bytes(content)
            try:
                after = load_state(checkpoint)["model"]
            except CheckpointError:
                continue
            assert all(torch.equal(after[name], before[name]) for name in before)

    def test_compressed_entries_may_be_any_size(self, checkpoint: Path) -> None:
        with zipfile.ZipFile(checkpoint) as archive:
            entries = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(checkpoint, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in entries.items():
                archive.writestr(name, content)
            archive.writestr("archive/data/99", bytes(50_000_000))
        assert checkpoint.stat().st_size < 1_000_000
        assert "damaged" in complaint(checkpoint)

    def test_no_ordinary_file(self) -> None:
        assert "no ordinary file" in complaint("/dev/zero")


class TestWeights:
    @pytest.mark.parametrize(
        "value",
        [
            "text",
            None,
            [torch.zeros(8)],
            torch.zeros(1).expand(10**6, 10**6),
            torch.zeros(2, 2).to_sparse(),
            torch.zeros(2, dtype=torch.complex64),
            torch.empty(10**9, 10**9, device="meta"),
            torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.qint8),
        ],
        ids=["text", "none", "list", "larger", "sparse", "complex", "meta", "quantized"],
    )
    def test_tensors_of_other_kinds(self, value: Any) -> None:
        with pytest.raises(CheckpointError, match=r"x\.pt: weight 'a' is "):
            check_weights("x.pt", {"a": value})

    def test_a_model_larger_than_the_file(self, checkpoint: Path) -> None:
        """The shapes are compared before memory is taken: here for 512 GB."""
        config = torch.load(checkpoint, weights_only=True)["cfg"]
        vars(config["model"]).update(encoder_ffn_embed_dim=1 << 20, decoder_ffn_embed_dim=1 << 20)
        vars(config["model"]).update(encoder_embed_dim=1 << 16, decoder_embed_dim=1 << 16)
        path = save_changed(checkpoint, cfg=config)
        with pytest.raises(CheckpointError, match="the weights do not fit the model: ") as caught:
            load_model(path, make_task())
        assert "\n" not in str(caught.value)
