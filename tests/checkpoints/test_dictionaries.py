"""A model is used with the dictionaries that it was trained with, and with no others."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from test_loading import make_state, make_task

from specdec_plugins.checkpoints import archive
from specdec_plugins.checkpoints.loading import KEY, fingerprints, load_model
from specdec_plugins.files.errors import CheckpointError
from specdec_plugins.tasks.specdec_config import TranslationSpecdecConfig
from specdec_plugins.tasks.translation_specdec import TranslationSpecdecTask


def make_own_task(words: list[str], count: int = 1) -> TranslationSpecdecTask:
    dictionary = Dictionary()
    for word in words:
        dictionary.add_symbol(word, count)
    cfg = TranslationSpecdecConfig(source_lang="en", target_lang="de")
    return TranslationSpecdecTask(cfg, dictionary, dictionary)


WORDS = [f"word{index}" for index in range(12)]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint.pt"
    task = make_own_task(WORDS)
    torch.save({**make_state(make_task()), "task_state": task.state_dict()}, path)
    return path


def test_fingerprints_tell_words_and_order_apart_but_not_counts() -> None:
    texts = (["a", "b"], ["b", "a"], ["a", "c"], ["a"], ["ab"], ["a", "b", "c"])
    prints = [str(fingerprints(make_own_task(text))) for text in texts]
    assert prints[0] == str(fingerprints(make_own_task(texts[0], count=7)))
    assert len({*prints}) == 6


def test_refused_where_fairseq_loads_it(saved: Path) -> None:
    with pytest.raises(CheckpointError):
        checkpoint_utils.load_model_ensemble_and_task([str(saved)], task=make_own_task(WORDS[::-1]))
    task = make_own_task(WORDS)
    checkpoint_utils.load_model_ensemble_and_task([str(saved)], task=task)
    assert task.state_dict()[KEY] == fingerprints(task)


def test_an_old_file_is_warned_of_once(saved: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.save(make_state(make_task()), saved)
    archive.warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            load_model(saved, make_own_task(WORDS))
    (record,) = caplog.records
    assert str(saved) in record.message
