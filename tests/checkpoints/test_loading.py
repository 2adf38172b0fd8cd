"""Reading checkpoints: what is safe loads, what is not is refused in one line."""

from __future__ import annotations

import argparse
import collections
import os
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from specdec_plugins.checkpoints import archive, loading
from specdec_plugins.checkpoints.loading import load_model, load_state
from specdec_plugins.checkpoints.pair import load_verifier
from specdec_plugins.files.errors import CheckpointError


def make_task(words: int = 12) -> TranslationTask:
    dictionary = Dictionary()
    for index in range(words):
        dictionary.add_symbol(f"word{index}")
    cfg = TranslationConfig(source_lang="en", target_lang="de")
    return TranslationTask(cfg, dictionary, dictionary)


def make_model_args() -> argparse.Namespace:
    sizes = {"embed_dim": 8, "ffn_embed_dim": 8, "layers": 1, "attention_heads": 2}
    sides = {f"{side}_{name}": n for name, n in sizes.items() for side in ("encoder", "decoder")}
    return argparse.Namespace(
        _name="transformer", arch="transformer", share_all_embeddings=True, dropout=0.3, **sides
    )


def make_state(task: TranslationTask) -> dict[str, Any]:
    """A checkpoint as fairseq's trainer saves it, with values of meters."""
    args = make_model_args()
    model = task.build_model(args)
    meters = [(10, "bleu", "AverageMeter", {"val": np.float64(1.5), "sum": np.arange(4)})]
    return {
        "args": None,
        "cfg": {"model": args, "task": {"_name": "translation"}, "common": {"seed": 1}},
        "model": model.state_dict(),
        "criterion": None,
        "optimizer_history": [
            {"optimizer_name": "FairseqAdam", "lr_scheduler_state": {"best": 1.0}, "num_updates": 7}
        ],
        "task_state": {},
        "extra_state": {
            "metrics": collections.OrderedDict(valid=meters),
            "train_iterator": {"epoch": 1, "iterations_in_epoch": 2},
            "val_loss": np.float32(3.25),
        },
        "last_optimizer_state": {"state": {0: {"step": torch.tensor(1.0)}}},
    }


@pytest.fixture
def task() -> TranslationTask:
    return make_task()


@pytest.fixture
def checkpoint(tmp_path: Path, task: TranslationTask) -> Path:
    path = tmp_path / "checkpoint_best.pt"
    torch.save(make_state(task), path)
    return path


def save_changed(path: Path, **changes: Any) -> Path:
    """A copy of a good checkpoint with entries replaced, or taken out where the value is ...."""
    state = {**torch.load(path, weights_only=True), **changes}
    changed = path.with_name("changed.pt")
    torch.save({key: value for key, value in state.items() if value is not ...}, changed)
    return changed


def complaint(path: Path | str) -> str:
    """The error of loading ``path``, which must be one line that begins with the file's name."""
    with pytest.raises(CheckpointError) as caught:
        load_state(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


class TestSafeGlobals:
    def test_are_types_and_stand_ins_only(self) -> None:
        named = {g[1]: g[0] for g in archive.safe_globals() if isinstance(g, tuple)}
        plain = [g for g in archive.safe_globals() if not isinstance(g, tuple)]
        names = {*named, *(f"{g.__module__}.{g.__name__}" for g in plain)}
        assert "argparse.Namespace" in names
        assert "omegaconf.dictconfig.DictConfig" in names
        acting = {"eval", "exec", "getattr", "setattr", "__import__", "open", "compile", "partial"}
        assert not acting & {name.rsplit(".", 1)[1] for name in names}
        assert not any(g in (np.ndarray, np.dtype) for g in (*plain, *named.values()))

    def test_fairseq_itself_can_read_a_checkpoint(
        self, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "1")  # the default
        state = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))
        assert state["cfg"].model.arch == "transformer"

    @pytest.mark.parametrize(
        "value",
        [
            np.float64(1.5),
            np.int64(2**40),
            np.bool_(True),
            np.asfortranarray(np.arange(6.0).reshape(2, 3)),
            np.arange(3, dtype=">i4"),
            np.zeros((0, 2), dtype=np.float16),
        ],
        ids=repr,
    )
    def test_numpy_values_survive_twice(self, value: Any, tmp_path: Path) -> None:
        path = tmp_path / "value.pt"
        for _ in range(2):  # a training that is resumed saves again what it has loaded
            torch.save(value, path)
            loaded = torch.load(path, weights_only=True)
            np.testing.assert_array_equal(loaded, value)
            assert loaded.dtype == value.dtype.newbyteorder("=")  # as numpy itself does it
            elsewhere = pickle.loads(pickle.dumps(loaded, protocol=2))
            assert type(elsewhere) is (np.ndarray if isinstance(value, np.ndarray) else type(value))
            value = loaded

    def test_numpy_objects_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "objects.pt"
        torch.save(np.array([{}, "x"], dtype=object), path)
        with pytest.raises(Exception, match="not a number"):
            torch.load(path, weights_only=True)


class Payload:
    """Pickled, it asks whoever reads it to call a function."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> str | tuple[object, ...]:
        return self.call


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("trusting", [True, False], ids=["trusting", "default"])
def test_code_is_not_run(
    trusting: bool, zipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if trusting:  # not even where the user lets torch run everything
        monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    trace, path = tmp_path / "trace", tmp_path / "checkpoint.pt"
    state = {**make_state(make_task()), "extra": Payload(os.system, f"touch {trace}")}
    torch.save(state, path, _use_new_zipfile_serialization=zipped)
    assert re.search("refused: would need to run .*system", complaint(path))
    assert not trace.exists()
    torch.load(path, weights_only=False)
    assert trace.exists(), "the payload is harmless: this test shows nothing"


class TestBadFiles:
    def test_not_a_checkpoint(self, tmp_path: Path) -> None:
        path = tmp_path / "checkpoint.pt"
        for content in (b"", b"\0" * 4096, bytes(range(256)) * 20, b"PK\x03\x04 no zip"):
            path.write_bytes(content)
            assert "not a checkpoint" in complaint(path)

    @pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
    @pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
    def test_truncated(
        self, share: float, zipped: bool, checkpoint: Path, task: TranslationTask
    ) -> None:
        torch.save(make_state(task), checkpoint, _use_new_zipfile_serialization=zipped)
        content = checkpoint.read_bytes()
        checkpoint.write_bytes(content[: int(len(content) * share)])
        assert "truncated or damaged" in complaint(checkpoint)

    def test_redundant_weights_of_other_versions(
        self, checkpoint: Path, task: TranslationTask
    ) -> None:
        extra = {
            "encoder.embed_positions._float_tensor": torch.zeros(1),
            "encoder.layers.0.in_proj_weight": torch.full((24, 8), float("nan")),
            "encoder.layers.0.fc1_bias": torch.zeros(8),
        }
        weights = load_state(checkpoint)["model"]
        assert load_model(save_changed(checkpoint, model={**extra, **weights}), task) is not None

    def test_packed_encoder_of_fairseq_0_12_2_is_not_used(self) -> None:
        layer = torch.nn.Linear(1, 1)
        vars(layer)["can_use_fastpath"] = True
        layer.register_parameter("in_proj_weight", torch.nn.Parameter(torch.zeros(1)))
        loading.use_plain_encoder(torch.nn.ModuleDict({"layers": torch.nn.ModuleList([layer])}))
        assert vars(layer)["can_use_fastpath"] is False
        trained = {name for name, p in layer.named_parameters() if p.requires_grad}
        assert trained == {"weight", "bias"}

    def test_other_dictionary(self, checkpoint: Path) -> None:
        with pytest.raises(CheckpointError, match="source dictionary has 16 entries, yours 20;"):
            load_model(checkpoint, make_task(words=16))
        with pytest.raises(CheckpointError, match=r"16 entries, yours 13; are .* madeupword0000"):
            load_model(checkpoint, make_task(words=9))

    def test_the_other_direction(self, checkpoint: Path, task: TranslationTask) -> None:
        """Of one dictionary both directions have the same sizes: nothing else would tell."""
        cfg = torch.load(checkpoint, weights_only=True)["cfg"]

        def saved(source: str | None, target: str | None) -> Path:
            languages = {"source_lang": source, "target_lang": target}
            return save_changed(checkpoint, cfg={**cfg, "task": {**cfg["task"], **languages}})

        with pytest.raises(CheckpointError, match="other direction; give -s de -t en"):
            load_model(saved("de", "en"), task)
        for languages in (("en", "de"), ("deu", "eng"), (None, None)):
            assert load_model(saved(*languages), task) is not None

    def test_missing_and_unknown_weights(self, checkpoint: Path, task: TranslationTask) -> None:
        weights = load_state(checkpoint)["model"]
        renamed = {key.replace(".fc1.", ".fc9."): value for key, value in weights.items()}
        with pytest.raises(CheckpointError, match=r"Missing key.*layers.0.fc1.weight"):
            load_model(save_changed(checkpoint, model=renamed), task)


def test_a_shard_of_a_checkpoint_is_named(tmp_path: Path) -> None:
    """As fairseq's trainer lays out what ``--use-sharded-state`` saves."""
    state = make_state(make_task())
    state["model"] = {"flat_param_0": torch.zeros(9)}
    state["shard_metadata"] = {"param_metadata": [], "buffer_names": []}
    torch.save(state, path := tmp_path / "checkpoint_last-shard0.pt")
    with pytest.raises(CheckpointError, match="is a shard of a checkpoint"):
        load_state(path)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_a_verifier_without_layers_is_refused_by_name(side: str, tmp_path: Path) -> None:
    task = make_task()
    state = make_state(task)
    setattr(state["cfg"]["model"], f"{side}_layers", 0)
    state["model"] = {
        name: weight for name, weight in state["model"].items() if f"{side}.layers" not in name
    }
    torch.save(state, path := tmp_path / "v.pt")
    with pytest.raises(CheckpointError, match=f"its {side} has no layers"):
        load_verifier(path, task)


def test_what_our_own_training_writes_is_no_unknown_field(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archive.warn_once.cache_clear()
    state = make_state(make_task())
    state["cfg"]["model"].mask_token = 3
    torch.save(state, path := tmp_path / "v.pt")
    load_state(path)
    assert "unknown fields" not in caplog.text
    state["cfg"]["model"].another_token = 3
    torch.save(state, path)
    load_state(path)
    assert "unknown fields, which are left out: 'another_token'" in caplog.text
