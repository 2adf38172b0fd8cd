"""``specdec-average-checkpoints``: means of weights, of checkpoints of one training only."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_task, make_verifier
from drafters import flatten
from trained import Trained

from specdec_plugins.checkpoints.dictionaries import KEY
from specdec_plugins.checkpoints.loading import load_state
from specdec_plugins.cli import average_checkpoints
from specdec_plugins.host.packed_encoder import without_copies

TABLES = [f"{name}.weight" for name in ("encoder.embed_tokens", "decoder.embed_tokens")]
Save = Callable[..., Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Saves a verifier of random weights in float16, as ``name``."""

    def save(name: str, seed: int, arch: str = "transformer", **sizes: int) -> Path:
        model = make_verifier(make_task(), seed=seed, share_all_embeddings=True, **sizes).half()
        args = Namespace(**{**flatten(model.args), "arch": arch})
        state = {
            "cfg": {"model": args, "task": {"_name": "translation"}},
            "model": model.state_dict(),
            "optimizer_history": [{"num_updates": seed}],
            "extra_state": {"train_iterator": {"epoch": 1}},
            "last_optimizer_state": {"state": {0: torch.zeros(10)}},
        }
        torch.save(state, tmp_path / name)
        return tmp_path / name

    return save


def average(*arguments: object) -> int:
    return average_checkpoints.main([str(argument) for argument in arguments])


def models(*paths: Path) -> list[dict[str, Any]]:
    return [without_copies(load_state(path)["model"]) for path in paths]


def assert_mean(output: Path, *inputs: Path) -> None:
    found, *given = models(output, *inputs)
    assert found.keys() == given[0].keys()
    for name, tensor in found.items():
        assert tensor.dtype == torch.float32
        mean = torch.stack([weights[name].double() for weights in given]).mean(0)
        torch.testing.assert_close(tensor.double(), mean, atol=1e-6, rtol=1e-6, msg=name)


def test_weights_are_means(save: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In float32, whatever the files hold; a shared table counts once, and stays shared."""
    inputs = [save(f"{seed}.pt", seed) for seed in (3, 4, 5)]
    output = tmp_path / "out.pt"
    assert average("--inputs", *inputs, "--output", output) == 0
    assert "3 checkpoints" in capsys.readouterr().out
    assert_mean(output, *inputs)
    state = load_state(output)
    assert len({state["model"][name].data_ptr() for name in TABLES}) == 1
    assert "last_optimizer_state" not in torch.load(output, weights_only=True)
    assert state["num_updates"] == 3


def test_the_last_of_a_folder(save: Save, tmp_path: Path) -> None:
    """By number, not by name or age; other files are passed over."""
    updates = {n: save(f"checkpoint_1_{n}.pt", n) for n in (1000, 200, 90)}
    epochs = {n: save(f"checkpoint{n}.pt", n) for n in (10, 9, 1)}
    for name in ("checkpoint_last.pt", "checkpoint_best.pt", "checkpoint_1_2000.pt.tmp"):
        (tmp_path / name).write_bytes(b"none")
    output = tmp_path / "out.pt"
    flags = ("--inputs", tmp_path, "--output", output)
    assert average(*flags, "--num-update-checkpoints", 2) == 0
    assert_mean(output, updates[1000], updates[200])
    assert load_state(output)["num_updates"] == 1000
    assert average(*flags, "--num-update-checkpoints", 2, "--checkpoint-upper-bound", 999) == 0
    assert_mean(output, updates[200], updates[90])
    assert average(*flags, "--num-epoch-checkpoints", 2) == 0
    assert_mean(output, epochs[10], epochs[9])


def test_the_average_translates(trained: Trained, tmp_path: Path) -> None:
    """Of one pair alone the pair itself, in either role."""
    files = {}
    for name in ("verifier", "drafter"):
        files[name] = tmp_path / f"{name}.pt"
        one = getattr(trained, name)
        assert average("--inputs", one, one, "--output", files[name]) == 0
    found = trained.translate(path=str(files["drafter"]), ar_path=str(files["verifier"]))
    assert found == trained.translate()


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert average(*arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("average_checkpoints.py: ")
    assert error.count("\n") == 1
    return error


def test_other_models_are_refused_by_name(
    save: Save, trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, output = save("first.pt", 1), tmp_path / "out.pt"
    output.write_bytes(b"precious")
    others = {
        save("wide.pt", 1, decoder_ffn_embed_dim=48): "decoder.layers.0.fc1.weight has shape",
        save("deep.pt", 1, decoder_layers=3): "decoder.layers.2.",
        save("shallow.pt", 1, decoder_layers=1): "is missing",
        save("tiny.pt", 1, arch="transformer_tiny"): "is a transformer_tiny, not a transformer",
        trained.drafter: "is a block_causal, not a transformer",
        tmp_path / "none.pt": "no such file",
    }
    for other, fault in others.items():
        error = refusal(capsys, "--inputs", first, other, "--output", output)
        assert str(other) in error
        assert fault in error
    # Two of the same shapes, which say that their words are not the same.
    one, other = ({**torch.load(first, weights_only=False)} for _ in range(2))
    one["task_state"], other["task_state"] = ({KEY: {"source": word}} for word in "ab")
    for name, state in (("one.pt", one), ("other.pt", other)):
        torch.save(state, tmp_path / name)
    pair = tmp_path / "one.pt", tmp_path / "other.pt"
    error = refusal(capsys, "--inputs", *pair, "--output", output)
    assert f"{tmp_path / 'other.pt'}: was trained with other dictionaries" in error
    error = refusal(capsys, "--inputs", trained.head, "--output", output)
    assert f"{trained.head}: is no model that translates" in error
    assert output.read_bytes() == b"precious"


def test_a_folder_with_too_few_is_refused(
    save: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save("checkpoint_1_10.pt", 1)
    flags = ("--output", tmp_path / "out.pt", "--num-update-checkpoints", 2)
    error = refusal(capsys, "--inputs", tmp_path, *flags)
    assert f"{tmp_path}: holds 1 files checkpoint_EPOCH_UPDATE.pt, not 2" in error
    error = refusal(capsys, "--inputs", tmp_path, *flags[:2])
    assert f"--inputs {tmp_path}: is a folder; give --num-update-checkpoints N" in error
    error = refusal(capsys, "--inputs", tmp_path / "none", *flags)
    assert f"{tmp_path / 'none'}: cannot be read" in error


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        ("--num-epoch-checkpoints 0", "--num-epoch-checkpoints 0: must be at least 1"),
        ("--num-update-checkpoints 2 --inputs a b", "--inputs: give one folder"),
        ("--checkpoint-upper-bound 2", "--checkpoint-upper-bound: needs"),
        ("--num-update-checkpoints 2 --num-epoch-checkpoints 2", "not allowed with"),
    ],
)
def test_a_command_line_that_says_nothing(
    flags: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        average("--inputs", "a", "--output", "out.pt", *flags.split())
    assert caught.value.code == 2
    assert fault in capsys.readouterr().err
