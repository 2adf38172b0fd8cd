"""The languages of multilingual models: as fairseq's own task has them."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_batch, make_dictionary
from fairseq.data import LanguagePairDataset, ListDataset
from fairseq.data.data_utils import collate_tokens
from helpers.models.stand_ins import begun, multilingual_task, saved_task

from specdec_plugins.checkpoints.config import saved_languages, stored_languages
from specdec_plugins.checkpoints.multilingual import (
    BOS,
    KEY,
    TASK,
    Multilingual,
    adopt,
)
from specdec_plugins.files.errors import CheckpointError, ConfigError
from specdec_plugins.tasks.language_data import add_languages
from specdec_plugins.tasks.translation_specdec import (
    TranslationSpecdecConfig,
    TranslationSpecdecTask,
)

LANGS = "--langs fr,en,de --lang-pairs en-de"
KINDS = {
    "both": "--encoder-langtok src --decoder-langtok",
    "the target's before the source": "--encoder-langtok tgt",
    "of the target alone": "--decoder-langtok --lang-tok-style mbart",
    "none": "",
    "in place of EOS": "--encoder-langtok src --decoder-langtok --lang-tok-replacing-bos-eos",
    "in place of the source's EOS": "--encoder-langtok tgt --lang-tok-replacing-bos-eos",
    "of a kind": "--langtoks-specs main,mined --langtoks {'main':('src.mined','tgt')}",
    "with a mask": "--decoder-langtok --extra-data {'mono_dae':'elsewhere'}",
}


class World:
    """The same task by fairseq and by us."""

    def __init__(self, folder: Path, flags: str) -> None:
        for language in ("en", "de"):
            make_dictionary().save(str(folder / f"dict.{language}.txt"))
        self.stock = multilingual_task(folder, f"{LANGS} {flags}")
        languages = saved_languages(saved_task(self.stock), str(folder))
        assert languages is not None
        self.languages = languages
        config = TranslationSpecdecConfig(source_lang="en", target_lang="de")
        self.task = TranslationSpecdecTask(config, make_dictionary(), make_dictionary())
        adopt(languages, self.task, "a file")
        self.tokens = self.task.language_tokens


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return World(tmp_path, KINDS[request.param])


def test_dictionaries_and_inference(world: World) -> None:
    for side in ("source_dictionary", "target_dictionary"):
        assert getattr(world.task, side).symbols == getattr(world.stock, side).symbols
    plain = make_batch([3, 6, 4])
    batch, begin = begun(world.stock, plain)
    rows = [world.tokens.of_source(row[row != 1]) for row in plain["net_input"]["src_tokens"]]
    sources = batch["net_input"]["src_tokens"]
    assert torch.equal(collate_tokens(rows, 1, left_pad=True), sources)
    forced, expected = world.tokens.forced, begin.get("prefix_tokens")
    assert expected is None if not forced else expected.tolist() == [forced] * len(sources)
    # Where nothing is said, fairseq too begins with EOS.
    assert (world.tokens.begin or 2) == begin.get("bos_token", 2)


def test_training_data(world: World) -> None:
    texts = [torch.tensor([4, 5, 6, 2]), torch.tensor([7, 2])]

    def pairs(source: Any, target: Any) -> LanguagePairDataset:
        dictionary = world.task.source_dictionary
        return LanguagePairDataset(source, source.sizes, dictionary, target, target.sizes)

    data = [ListDataset(texts, [len(text) for text in texts]) for _ in range(2)]
    ours = pairs(*data)
    add_languages(ours, world.tokens)
    manager, (before, after) = world.stock.data_manager, world.stock.args.langtoks["main"]
    stock = pairs(
        manager.src_dataset_tranform_func("en", "de", data[0], before),
        manager.tgt_dataset_tranform_func("en", "de", data[1], after),
    )
    assert ours.sizes.tolist() == stock.sizes.tolist()
    if world.stock.args.lang_tok_replacing_bos_eos:
        stock = manager.alter_dataset_langtok(stock, 2, "en", 2, "de", before, after)
    ours, stock = (item.collater([item[i] for i in range(2)]) for item in (ours, stock))
    assert torch.equal(ours["net_input"]["src_tokens"], stock["net_input"]["src_tokens"])
    assert torch.equal(ours["target"], stock["target"])


def test_options_are_read_as_they_are_saved(world: World) -> None:
    assert stored_languages({KEY: world.languages.options()}) == world.languages
    everything = {**world.languages.task_options(), "_name": TASK}
    assert saved_languages(everything, "") == world.languages
    assert saved_languages({"_name": "translation"}, "") is None is stored_languages({})


def test_a_list_of_languages_lies_beside_the_checkpoint(tmp_path: Path) -> None:
    values = {"lang_dict": "/elsewhere/langs.txt", "decoder_langtok": True}
    (tmp_path / "langs.txt").write_text("de\nen\n")
    assert Multilingual.of(values, str(tmp_path)).langs == ("de", "en")


def test_dictionaries_of_nllb_end_with_tags() -> None:
    nllb = Multilingual.of({"langs": "en,de", "add_data_source_prefix_tags": True}, "")
    dictionary = make_dictionary(1)
    nllb.augment(dictionary)
    tags = ["<MINED_DATA>", "<MMT_BT_DATA>", "<SMT_BT_DATA>"]
    assert dictionary.symbols[4:] == ["w0", "__en__", "__de__", *tags]
    assert stored_languages({KEY: nllb.options()}) == nllb


def test_bos_in_place_of_languages() -> None:
    """BART's sentences begin with it."""
    bart = Multilingual(langs=(), source_spec=BOS, target_spec=BOS)
    assert stored_languages({KEY: bart.options()}) == bart
    config = TranslationSpecdecConfig()
    task = TranslationSpecdecTask(config, make_dictionary(), make_dictionary())
    adopt(bart, task, "a checkpoint")
    assert task.language_tokens.of_source(torch.tensor([4, 2])).tolist() == [0, 4, 2]
    assert task.language_tokens.forced == [0]
    assert not bart.is_stock


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({}, "langs"),
        ({"langs": "en,d e"}, "langs"),
        ({"langs": "en", "langtoks_main": "src"}, "source_spec"),
        ({"langs": "en", "encoder_langtok": "{}"}, "source_spec"),
    ],
)
def test_impossible_languages(values: dict[str, object], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        Multilingual.of(values, "")


def test_tasks_refuse_other_languages(tmp_path: Path) -> None:
    world = World(tmp_path, "--decoder-langtok")
    adopt(world.languages, world.task, "the same")

    def fresh(target: str) -> Namespace:
        cfg, words = Namespace(source_lang="en", target_lang=target), make_dictionary()
        return Namespace(cfg=cfg, source_dictionary=words, target_dictionary=words)

    lost = {"langs": "en,de", "encoder_langtok": "src.mined"}
    for languages, task, named in (
        (Multilingual.of({"langs": "en,de"}, ""), world.task, "drafter.pt"),
        (world.languages, fresh("xx"), "-t: .*__xx__"),
        (Multilingual.of(lost, ""), fresh("de"), "__en_mined__"),
    ):
        with pytest.raises(CheckpointError, match=named):
            adopt(languages, task, "drafter.pt")
