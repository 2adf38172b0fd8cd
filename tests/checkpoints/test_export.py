"""Shipped checkpoints: small, half precision, without the paths of whoever trained them."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_task, make_verifier, without_copies
from drafters import make_causal, save_checkpoint
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder

from specdec_plugins.checkpoints.archive import CheckpointError
from specdec_plugins.checkpoints.dictionaries import KEY, dictionary_fingerprint
from specdec_plugins.checkpoints.export import export_checkpoint
from specdec_plugins.checkpoints.loading import load_state
from specdec_plugins.checkpoints.pair import load_drafter
from specdec_plugins.cli import export_checkpoint as export_script
from specdec_plugins.tasks.specdec_config import TranslationSpecdecConfig
from specdec_plugins.tasks.translation_specdec import TranslationSpecdecTask


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    model = make_verifier(make_task(), share_all_embeddings=True).float()
    state: dict[str, Any] = {
        "cfg": {
            "model": Namespace(arch="transformer", data="/home/me/bin", save_dir="/home/me/out"),
            "task": {"_name": "translation", "data": "/home/me/bin", "source_lang": "en"},
            "criterion": {"_name": "cross_entropy"},
        },
        "args": None,
        "model": model.state_dict(),
        "optimizer_history": [
            {
                "num_updates": 7,
                "optimizer_name": "FairseqAdam",
                "lr_scheduler_state": {},
                "criterion_name": "CrossEntropyCriterion",
            }
        ],
        "extra_state": {"train_iterator": {"epoch": 1}},
        "last_optimizer_state": {"state": {0: torch.zeros(100_000)}},
    }
    path = tmp_path / "trained.pt"
    torch.save(state, path)
    return path


def test_weights_are_halved_and_shared_ones_stored_once(trained: Path, tmp_path: Path) -> None:
    target = tmp_path / "small.pt"
    size = export_checkpoint(str(trained), str(target))
    before, after = load_state(trained)["model"], load_state(target)["model"]
    assert size == target.stat().st_size
    assert without_copies(before).keys() == after.keys()
    for name, tensor in after.items():
        torch.testing.assert_close(tensor.float(), before[name].half().float())
    tables = ("encoder.embed_tokens", "decoder.embed_tokens", "decoder.output_projection")
    assert len({after[f"{name}.weight"].data_ptr() for name in tables}) == 1
    unique = {tensor.data_ptr(): 2 * tensor.numel() for tensor in after.values()}
    assert size < sum(unique.values()) + 60_000


def test_no_path_of_the_training_machine_is_left(trained: Path, tmp_path: Path) -> None:
    target = tmp_path / "small.pt"
    export_checkpoint(str(trained), str(target))
    assert b"/home/me" in trained.read_bytes()
    assert b"/home/me" not in target.read_bytes()
    assert load_state(target)["cfg"]["task"].source_lang == "en"


def test_options_that_the_checkpoint_is_older_than_have_their_defaults(
    trained: Path, tmp_path: Path
) -> None:
    state = torch.load(trained, weights_only=False)
    state["cfg"]["task"] = {"_name": "translation_specdec", "block_size": 3}
    torch.save(state, trained)
    export_checkpoint(str(trained), str(tmp_path / "small.pt"))
    task = load_state(tmp_path / "small.pt")["cfg"]["task"]
    assert (task.block_size, task.beta, task.controller) == (3, 1, "auto")
    assert not hasattr(task, "num_shards")  # it follows fairseq's own option of that name


def test_the_dictionaries_are_noted(trained: Path, tmp_path: Path) -> None:
    target, folder = str(tmp_path / "small.pt"), tmp_path / "bin"
    folder.mkdir()
    dictionary = make_task().source_dictionary
    for language in ("en", "de"):
        dictionary.save(str(folder / f"dict.{language}.txt"))
    export_checkpoint(str(trained), target, "en", "de", str(folder))
    expected = dictionary_fingerprint(dictionary)
    assert load_state(target)["task_state"][KEY] == {"source": expected, "target": expected}
    # What they are is kept from then on, and is not to be changed.
    again = str(tmp_path / "again.pt")
    export_checkpoint(target, again)
    assert load_state(again)["task_state"] == load_state(target)["task_state"]
    (folder / "dict.de.txt").write_text("other 1\n", "utf-8")
    with pytest.raises(CheckpointError, match="trained with other dictionaries than those in"):
        export_checkpoint(target, again, dictionaries=str(folder))
    with pytest.raises(CheckpointError, match=r"dict\.fr\.txt: cannot be read as a dictionary"):
        export_checkpoint(target, again, "en", "fr", str(folder))


@pytest.fixture
def training_set(tmp_path: Path) -> Path:
    """Targets whose most frequent tokens are EOS, 9, 4, 7 and 22, and their dictionaries."""
    folder = tmp_path / "bin"
    folder.mkdir()
    dictionary = make_task().source_dictionary
    for language in ("en", "de"):
        dictionary.save(str(folder / f"dict.{language}.txt"))
    builder = MMapIndexedDatasetBuilder(str(folder / "train.en-de.de.bin"), dtype=np.uint16)
    for target in ([9, 9, 4, 2], [7, 9, 4, 2], [7, 4, 9, 2], [22, 7, 9, 2], [4, 2], [2]):
        builder.add_item(torch.tensor(target))
    builder.finalize(str(folder / "train.en-de.de.idx"))
    return folder


def test_a_drafter_drafts_the_most_frequent_tokens_only(training_set: Path, tmp_path: Path) -> None:
    dictionary = make_task().source_dictionary
    task = TranslationSpecdecTask(TranslationSpecdecConfig(), dictionary, dictionary)
    source = save_checkpoint(tmp_path / "drafter.pt", make_causal())
    target = str(tmp_path / "small.pt")
    for count, expected in ((3, [2, 9, 4]), (100, [2, 9, 4, 7, 22])):
        given = count, str(training_set)
        export_checkpoint(str(source), target, "en", "de", draft_vocabulary=given)
        drafter = load_drafter(target, task)
        assert drafter.decoder.draft_vocabulary.tolist() == expected
        # It goes with the weights from then on.
        export_checkpoint(target, str(tmp_path / "again.pt"))
        drafter = load_drafter(tmp_path / "again.pt", task)
        assert drafter.decoder.draft_vocabulary.tolist() == expected


def test_a_draft_vocabulary_that_cannot_be(
    trained: Path, training_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "small.pt"
    drafter = save_checkpoint(tmp_path / "drafter.pt", make_causal())

    def fault(source: Path, count: str, folder: Path, *flags: str) -> str:
        flags = ("-s", "en", "-t", "de", "--draft-vocabulary", count, str(folder), *flags)
        assert export_script.main([str(source), str(target), *flags])
        return capsys.readouterr().err

    assert "trained.pt: is no drafter; leave out" in fault(trained, "3", training_set)
    (training_set / "train.en-de.de.idx").unlink()
    assert "train.en-de.de.bin: no such training set; name" in fault(drafter, "3", training_set)
    (training_set / "dict.de.txt").write_text("other 1\n", "utf-8")
    assert "trained with other dictionaries" in fault(drafter, "3", training_set)
    for count in ("0", "-3", "many"):
        with pytest.raises(SystemExit):
            fault(drafter, count, training_set)
        assert f"--draft-vocabulary {count}: must be a whole" in capsys.readouterr().err
    assert not target.exists()


def test_a_heads_checkpoint_is_refused(trained: Path, tmp_path: Path) -> None:
    state = torch.load(trained, weights_only=False)
    state["model"] = {"head.out.weight": torch.zeros(1, 4), "head._extra_state": {"layers": 0}}
    torch.save(state, trained)
    with pytest.raises(CheckpointError, match=r"trained\.pt: .*calibrate_head\.py makes the file"):
        export_checkpoint(str(trained), str(tmp_path / "small.pt"))


def test_an_unwritable_target_is_named(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        export_checkpoint(str(trained), str(tmp_path / "nowhere" / "small.pt"))


def test_the_script_reports_errors_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export_script.main([str(tmp_path / "missing.pt"), str(tmp_path / "x.pt")]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"export_checkpoint.py: {tmp_path}/missing.pt: no such file")
    assert error.count("\n") == 1
