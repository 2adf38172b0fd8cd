"""Shipped checkpoints: small, without the paths of whoever trained them."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_task, make_verifier
from helpers.models.drafters import flatten, make_causal, save_checkpoint, trainer_state

from specdec_plugins.checkpoints.export import Training, export_checkpoint
from specdec_plugins.checkpoints.loading import KEY, dictionary_fingerprint, load_state
from specdec_plugins.files.errors import CheckpointError
from specdec_plugins.host.checkpoints import without_copies
from specdec_plugins.models.drafter import VOCABULARY


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    model = make_verifier(make_task(), share_all_embeddings=True).float()
    paths = {"data": "/home/me/bin", "save_dir": "/home/me"}
    cfg = {
        "model": Namespace(**flatten(model.args), arch="transformer", **paths),
        "task": {"_name": "translation", "data": "/home/me/bin", "source_lang": "en"},
        "criterion": {"_name": "cross_entropy"},
    }
    path = tmp_path / "trained.pt"
    torch.save(trainer_state(cfg, model), path)
    return path


def test_views_of_one_storage_stay_what_they_are(trained: Path, tmp_path: Path) -> None:
    state = torch.load(trained, weights_only=False)
    attention = "encoder.layers.0.self_attn"
    query = state["model"][f"{attention}.q_proj.weight"]
    state["model"][f"{attention}.k_proj.weight"] = query.t()
    torch.save(state, trained)
    export_checkpoint(str(trained), str(tmp_path / "small.pt"))
    weights = load_state(tmp_path / "small.pt")["model"]
    assert torch.equal(weights[f"{attention}.k_proj.weight"], query.t())


def test_an_overflow_of_float16_is_refused_before_there_is_a_file(
    trained: Path, tmp_path: Path
) -> None:
    state = torch.load(trained, weights_only=False)
    state["model"]["encoder.layers.0.fc1.weight"][0, 0] = 1e6
    torch.save(state, trained)
    with pytest.raises(CheckpointError):
        export_checkpoint(str(trained), str(tmp_path / "small.pt"), half=True)
    assert [path.name for path in tmp_path.iterdir()] == ["trained.pt"]


@pytest.mark.parametrize("fault", ["bit", "missing", "half", "truncated"])
def test_what_cannot_be_read_again_as_it_was_takes_no_name(
    fault: str, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, save = tmp_path / "small.pt", torch.save
    target.write_bytes(b"precious")

    def faulty(state: Any, file: Any) -> None:
        weights = {name: tensor.clone() for name, tensor in state["model"].items()}
        name, tensor = next(iter(weights.items()))
        if fault == "bit":
            tensor.view(torch.int32).flatten()[0] ^= 1
        elif fault == "missing":
            del weights[name]
        elif fault == "half":
            weights[name] = tensor.half()
        save({**state, "model": weights}, file)
        if fault == "truncated":
            file.truncate(file.tell() // 2)

    monkeypatch.setattr(torch, "save", faulty)
    with pytest.raises(CheckpointError):
        export_checkpoint(str(trained), str(target))
    assert target.read_bytes() == b"precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.pt", "trained.pt"]


def test_weights_are_halved_and_shared_ones_stored_once(trained: Path, tmp_path: Path) -> None:
    target = tmp_path / "small.pt"
    size = export_checkpoint(str(trained), str(target), half=True)
    before, after = load_state(trained)["model"], load_state(target)["model"]
    assert size == target.stat().st_size
    assert without_copies(before).keys() == after.keys()
    for name, tensor in after.items():
        torch.testing.assert_close(tensor.float(), before[name].half().float())
    tables = ("encoder.embed_tokens", "decoder.embed_tokens", "decoder.output_projection")
    assert len({after[f"{name}.weight"].data_ptr() for name in tables}) == 1
    unique = {tensor.data_ptr(): 2 * tensor.numel() for tensor in after.values()}
    assert size < sum(unique.values()) + 60_000


def test_options_that_the_checkpoint_is_older_than_have_their_defaults(
    drafter: Path, tmp_path: Path
) -> None:
    state = torch.load(drafter, weights_only=False)
    state["cfg"]["task"] = {"_name": "translation_specdec", "block_size": 3}
    torch.save(state, drafter)
    export_checkpoint(str(drafter), str(tmp_path / "small.pt"))
    task = load_state(tmp_path / "small.pt")["cfg"]["task"]
    assert (task.block_size, task.beta, task.controller) == (3, 1, "auto")
    assert not hasattr(task, "fp16")  # it follows fairseq's own option of that name


def test_a_verifier_of_our_task_is_one_of_fairseqs(trained: Path, tmp_path: Path) -> None:
    """So that it needs no plugin; no path of the machine that trained it is left."""
    state = torch.load(trained, weights_only=False)
    state["cfg"]["task"] = {"_name": "translation_specdec", "block_size": 3, "target_lang": "de"}
    torch.save(state, trained)
    export_checkpoint(str(trained), str(tmp_path / "small.pt"))
    assert b"/home/me" in trained.read_bytes()
    assert b"/home/me" not in (tmp_path / "small.pt").read_bytes()
    config = torch.load(tmp_path / "small.pt", weights_only=False)["cfg"]
    assert config["task"]["_name"] == config["model"].task == "translation"
    assert config["task"]["target_lang"] == config["model"].target_lang == "de"
    assert "block_size" not in config["task"]


def test_the_dictionaries_are_noted(trained: Path, tmp_path: Path) -> None:
    target, folder = str(tmp_path / "small.pt"), tmp_path / "bin"
    folder.mkdir()
    dictionary = make_task().source_dictionary
    for language in ("en", "de"):
        dictionary.save(str(folder / f"dict.{language}.txt"))
    export_checkpoint(str(trained), target, Training(("en", "de"), str(folder)))
    expected = dictionary_fingerprint(dictionary)
    assert load_state(target)["task_state"][KEY] == {"source": expected, "target": expected}
    again = str(tmp_path / "again.pt")
    export_checkpoint(target, again)
    assert load_state(again)["task_state"] == load_state(target)["task_state"]
    (folder / "dict.de.txt").write_text("other 1\n", "utf-8")
    with pytest.raises(CheckpointError):
        export_checkpoint(target, again, Training(dictionaries=str(folder)))


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    """A drafter's checkpoint, beside a folder of its dictionaries and text in its words."""
    task = make_task()
    for language in ("en", "de"):
        task.target_dictionary.save(str(tmp_path / f"dict.{language}.txt"))
    words = task.target_dictionary.symbols[4:]
    # The first word twice, the last one thrice, the two in between as often as each other.
    lines = [f"{words[0]} {words[-1]}", f"{words[0]} {words[-1]} {words[5]}", ""]
    (tmp_path / "text.de").write_text("\n".join([*lines, f"{words[-1]} {words[3]}\n"]), "utf-8")
    languages = {"source_lang": "en", "target_lang": "de"}
    return save_checkpoint(tmp_path / "drafter.pt", make_causal(task), **languages)


@pytest.mark.parametrize(("count", "words"), [(2, [-1]), (3, [0, -1]), (4, [0, 3, -1])])
def test_a_draft_vocabulary_is_what_a_text_has_most(
    count: int, words: list[int], drafter: Path, tmp_path: Path
) -> None:
    target = str(tmp_path / "small.pt")
    text = str(tmp_path / "text.de")
    folder = Training(dictionaries=str(tmp_path))
    export_checkpoint(str(drafter), target, folder, (count, text))
    dictionary = make_task().target_dictionary
    expected = [dictionary.index(dictionary.symbols[4:][word]) for word in words]
    chosen = load_state(target)["model"][VOCABULARY]
    assert chosen.tolist() == [dictionary.eos(), *expected]
    # It stays, and can be chosen anew.
    again = str(tmp_path / "again.pt")
    export_checkpoint(target, again)
    assert torch.equal(load_state(again)["model"][VOCABULARY], chosen)
    export_checkpoint(target, again, folder, (2, text))
    assert len(load_state(again)["model"][VOCABULARY]) == 2


def test_a_draft_vocabulary_has_eos_however_rare(drafter: Path, tmp_path: Path) -> None:
    """Else no draft would ever end a sentence. Here it is the rarest token of the text."""
    text, target = tmp_path / "long.de", str(tmp_path / "small.pt")
    text.write_text("w5 w5 w5 w7 w7 w9 w9\n", "utf-8")
    folder = Training(dictionaries=str(tmp_path))
    export_checkpoint(str(drafter), target, folder, (3, str(text)))
    dictionary = make_task().target_dictionary
    expected = [dictionary.eos(), dictionary.index("w5"), dictionary.index("w7")]
    assert load_state(target)["model"][VOCABULARY].tolist() == expected


def test_a_verifier_may_write_unk(drafter: Path, tmp_path: Path) -> None:
    """Its own output is segmented as it should be, however often it has the token."""
    text, target = tmp_path / "own.de", str(tmp_path / "small.pt")
    text.write_text("w5 <unk> w7 <unk> w5 <unk>\n", "utf-8")
    export_checkpoint(str(drafter), target, Training(dictionaries=str(tmp_path)), (2, str(text)))
    words = [2, make_task().target_dictionary.index("w5")]
    assert load_state(target)["model"][VOCABULARY].tolist() == words


def test_text_that_is_segmented_otherwise_is_refused(drafter: Path, tmp_path: Path) -> None:
    text, target = tmp_path / "text.de", tmp_path / "small.pt"
    folder = Training(dictionaries=str(tmp_path))
    for content, count in (("w0 " * 30 + "Katze", 2), ("w0 w1", 6)):
        text.write_text(content, "utf-8")
        with pytest.raises(CheckpointError, match=r"text\.de"):
            export_checkpoint(str(drafter), str(target), folder, (count, str(text)))
    assert not target.exists()
