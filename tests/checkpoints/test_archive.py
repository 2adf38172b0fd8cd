"""Damaged and oversized files: found before anything is built of them."""

from __future__ import annotations

import collections
import io
import pickle
import pickletools
import random
import struct
import zipfile
import zlib
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


class Claim:
    """A tensor of 64 MiB in a pickle of torch before 1.6 that holds none of its numbers."""

    SIZE = 1 << 24

    def __reduce__(self) -> tuple[object, ...]:
        shape = (0, (self.SIZE,), (1,), False, collections.OrderedDict())
        return torch._utils._rebuild_tensor_v2, (type(self), *shape)


class Claiming(pickle.Pickler):
    def persistent_id(self, value: object) -> tuple[object, ...] | None:
        if value is Claim:
            return ("storage", torch.FloatStorage, "0", "cpu", Claim.SIZE, None)
        return None


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

    def test_entries_that_share_their_bytes_may_be_any_size(
        self, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each entry's data are all entries after it: 200 times the file, and not compressed."""
        content = b"\0" * 1_000_000
        directory = b""
        for number in range(200):
            name = f"archive/data/{number}".encode()
            sizes = (zlib.crc32(content), len(content), len(content), len(name), 0)
            local = struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 0, 0, 33, *sizes)
            content = local + name + content
            # The offset is known when all headers are written: from the end.
            entry = (b"PK\1\2", 20, 20, 0, 0, 0, 33, *sizes, 0, 0, 0, 0, len(content))
            directory += struct.pack("<4s6H3L5H2L", *entry) + name
        entries = io.BytesIO(directory)
        moved = b""
        while head := entries.read(46):
            (from_end,) = struct.unpack("<L", head[42:])
            name = entries.read(struct.unpack("<H", head[28:30])[0])
            moved += head[:42] + struct.pack("<L", len(content) - from_end) + name
        end = (b"PK\5\6", 0, 0, 200, 200, len(moved), len(content), 0)
        checkpoint.write_bytes(content + moved + struct.pack("<4s4H2LH", *end))
        with zipfile.ZipFile(checkpoint) as archive:
            claimed = sum(entry.file_size for entry in archive.infolist())
        assert claimed > 150 * checkpoint.stat().st_size
        read: list[Any] = []
        monkeypatch.setattr(zipfile.ZipFile, "testzip", lambda archive: read.append(archive))
        assert "damaged" in complaint(checkpoint)
        assert not read, "refused only after all of it was read"

    def test_an_old_pickle_may_claim_tensors_of_any_size(
        self, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No memory is filled that the file does not fill."""
        written = io.BytesIO()
        for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}):
            pickle.dump(part, written, protocol=2)
        Claiming(written, protocol=2).dump({"model": {"a": Claim()}})
        pickle.dump([], written, protocol=2)
        checkpoint.write_bytes(written.getvalue())
        filled: list[int] = []
        fill = torch.UntypedStorage.fill_

        def counted(storage: Any, value: int) -> Any:
            filled.append(storage.nbytes())
            return fill(storage, value)

        monkeypatch.setattr(torch.UntypedStorage, "fill_", counted)
        assert "damaged" in complaint(checkpoint)
        assert sum(filled) <= checkpoint.stat().st_size

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
    def test_tensors_of_other_kinds(self, value: object) -> None:
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
