"""``scripts/encoder_initial.py`` and the published way of starting a drafter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import make_verifier
from helpers.models.drafters import (
    PUBLISHED,
    golden,
    needs_published,
    published_task,
    save_checkpoint,
)
from helpers.models.dummy_data import SIZES, run_train
from helpers.models.trained import Trained

from specdec_plugins.checkpoints.loading import load_state
from specdec_plugins.checkpoints.pair import write_initial_checkpoint
from specdec_plugins.cli import encoder_initial
from specdec_plugins.host.checkpoints import without_copies
from specdec_plugins.models.block_nat import BlockDrafter

DRAFTER = (
    "--task translation_lev_modified --arch block --noise block_mask --block-size 4 "
    "--criterion glat_loss --label-smoothing 0.1 --share-all-embeddings --src-embedding-copy "
    f"--apply-bert-init --encoder-learned-pos --decoder-learned-pos {SIZES}"
)
RESETS = "--reset-optimizer --reset-meters --reset-lr-scheduler --reset-dataloader"


def test_a_drafter_starts_from_the_verifiers_encoder(trained: Trained, tmp_path: Path) -> None:
    """The published workflow."""
    initial = tmp_path / "initial_checkpoint.pt"
    assert encoder_initial.main([str(trained.verifier), str(initial)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == [initial.name]
    theirs, kept = load_state(trained.verifier), load_state(initial)
    source = theirs["model"]
    assert set(kept) == set(theirs) - {"last_optimizer_state"}
    assert set(kept["model"]) == {key for key in source if key.startswith("encoder.")}

    # A learning rate of zero: what is saved is what was loaded.
    flags = f"{DRAFTER} --max-update 1 --restore-file {initial} {RESETS} --lr 0"
    logs = run_train(trained.data, tmp_path / "drafter", flags)
    assert logs.of("train")[-1]["train_num_updates"] == 1
    model = without_copies(load_state(tmp_path / "drafter" / "checkpoint_last.pt")["model"])
    fresh = {"encoder.embed_positions.weight", "encoder.version", "decoder.version"}
    tied = {"decoder.embed_tokens.weight", "decoder.output_projection.weight"}
    for key, tensor in model.items():
        if key.startswith("encoder.") and key not in fresh | tied:
            assert torch.equal(tensor, source[key]), key
        elif key.startswith("decoder.layers") and key.endswith("weight") and "norm" not in key:
            assert not torch.equal(tensor, source[key]), key
            assert tensor.std().item() == pytest.approx(0.02, rel=0.5), key
    # The file holds all that fairseq's trainer asks for: counts begin anew, and go on.
    logs = run_train(trained.data, tmp_path / "drafter", f"{DRAFTER} --max-update 3")
    assert [log["num_updates"] for log in logs.of("train_inner")] == [2, 3]


@needs_published
def test_the_published_script_keeps_and_copies_the_same(tmp_path: Path) -> None:
    expected, initial = golden("encoder_init.json"), tmp_path / "initial.pt"
    names = write_initial_checkpoint(str(PUBLISHED / "verifier.pt"), str(initial))
    assert sorted(names) == sorted(expected["initial_model_keys"])
    state = load_state(initial)
    keys = set(torch.load(initial, weights_only=True))
    assert keys == set(expected["initial_top_level_keys"]) - {"last_optimizer_state"}

    args = load_state(PUBLISHED / "drafter.pt")["cfg"]["model"]
    model = BlockDrafter.build_model(args, published_task())
    model.load_state_dict(state["model"], strict=True)
    theirs = load_state(PUBLISHED / "verifier.pt")["model"]
    equal = {k: t for k, t in model.state_dict().items() if k in theirs and t.equal(theirs[k])}
    # Layer norms and biases begin alike everywhere; the decoder's were not copied.
    copied = {key for key, t in equal.items() if not t.equal(t.mean().expand_as(t))}
    assert copied == set(expected["copied_from_verifier"])


def test_an_average_of_the_weights_stays_behind(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "verifier.pt", make_verifier().float())
    state = torch.load(path, weights_only=False)
    state["extra_state"].update(ema=state["model"], ema_fp32_params={}, best=1.5)
    torch.save(state, path)
    write_initial_checkpoint(str(path), str(tmp_path / "initial.pt"))
    assert load_state(tmp_path / "initial.pt")["extra_state"] == {}


@pytest.mark.parametrize(
    "words", ["nothing.pt out.pt", "DRAFTER out.pt", "VERIFIER nowhere/out.pt"]
)
def test_bad_input(
    words: str, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = words.replace("DRAFTER", str(trained.drafter))
    assert encoder_initial.main(words.replace("VERIFIER", str(trained.verifier)).split()) == 1
    assert not [*tmp_path.iterdir()]
