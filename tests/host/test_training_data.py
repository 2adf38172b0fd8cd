"""Training: every pair is in a batch, and attention in bfloat16."""

from __future__ import annotations

from argparse import Namespace
from contextlib import nullcontext

import pytest
import torch
from helpers.models.dummy_data import make_data
from torch import nn

from specdec_plugins.host.training import SHORT, autocast, refuse_precision
from specdec_plugins.tasks.specdec_config import TranslationSpecdecConfig
from specdec_plugins.tasks.translation_specdec import TranslationSpecdecTask


@pytest.mark.parametrize(
    ("source", "target", "fused"),
    [(SHORT, SHORT, False), (SHORT + 1, 5, True), (5, SHORT + 1, True)],
)
def test_short_sentences_are_attended_to_by_plain_products(
    source: int, target: int, fused: bool
) -> None:
    sources, targets = torch.ones(2, source), torch.ones(2, target)
    sample = {"net_input": {"src_tokens": sources}, "target": targets}
    with autocast("bfloat16", nn.Linear(2, 2), sample):  # type: ignore[arg-type]
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16
        assert torch.is_autocast_enabled("cpu")
        assert torch.backends.cuda.flash_sdp_enabled() == fused
    assert torch.backends.cuda.flash_sdp_enabled()
    assert not torch.is_autocast_enabled("cpu")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> TranslationSpecdecTask:
    """61 training and 14 valid pairs."""
    data = make_data(tmp_path_factory.mktemp("data"), train=61)
    cfg = TranslationSpecdecConfig(
        data=str(data),
        source_lang="en",
        target_lang="de",
        dataset_impl=None,
        train_subset="train",
        required_seq_len_multiple=1,
    )
    task = TranslationSpecdecTask.setup_task(cfg)
    for split in ("train", "valid"):
        task.load_dataset(split)
    return task


@pytest.mark.parametrize("split", ["train", "valid"])
@pytest.mark.parametrize("sizes", [{"max_sentences": 32}, {"max_tokens": 60}, {"max_tokens": 1000}])
@pytest.mark.parametrize("multiple", [1, 8, 16])
def test_no_pair_is_left_out(
    task: TranslationSpecdecTask, split: str, sizes: dict[str, int], multiple: int
) -> None:
    dataset = task.dataset(split)
    iterator = task.get_batch_iterator(
        dataset, required_batch_size_multiple=multiple, disable_iterator_cache=True, **sizes
    )
    batches = [batch["id"].tolist() for batch in iterator.next_epoch_itr(shuffle=False)]
    numbers = sorted(number for batch in batches for number in batch)
    assert numbers == list(range(len(dataset)))
    # All but the last are still such as were asked for.
    assert all(len(batch) < multiple or len(batch) % multiple == 0 for batch in batches[:-1])


def test_the_dataset_loads_in_other_processes(task: TranslationSpecdecTask) -> None:
    iterator = task.get_batch_iterator(
        task.dataset("valid"), max_sentences=4, required_batch_size_multiple=8, num_workers=2
    )
    assert sum(len(batch["id"]) for batch in iterator.next_epoch_itr()) == 14


@pytest.mark.parametrize("slots", [0, 12])
def test_max_tokens_counts_the_slots(task: TranslationSpecdecTask, slots: int) -> None:
    """A batch's padded targets, and the slots after each."""
    task.load_dataset("train")
    dataset = task.dataset("train")
    dataset.slots = slots
    iterator = task.get_batch_iterator(
        dataset, max_tokens=80, required_batch_size_multiple=1, disable_iterator_cache=True
    )
    computed = []
    for batch in iterator.next_epoch_itr(shuffle=False):
        sources, (rows, longest) = batch["net_input"]["src_tokens"], batch["target"].shape
        computed.append(max(sources.numel(), rows * (longest + slots)))
    assert max(computed) <= 80 < 2 * max(computed)


def test_a_sentence_with_more_slots_than_max_tokens_is_a_batch(
    task: TranslationSpecdecTask,
) -> None:
    """fairseq leaves out sentences that are longer by themselves, and would end the training."""
    task.load_dataset("train")
    dataset = task.dataset("train")
    longest = int(max(dataset.src_sizes.max(), dataset.tgt_sizes.max()))
    dataset.slots = 12
    iterator = task.get_batch_iterator(
        dataset, max_tokens=longest, required_batch_size_multiple=1, disable_iterator_cache=True
    )
    batches = [batch["id"].tolist() for batch in iterator.next_epoch_itr(shuffle=False)]
    assert sorted(batches) == [[number] for number in range(len(dataset))]


def test_buckets_hold_the_slots_too(task: TranslationSpecdecTask) -> None:
    """Else no sentence would fit one, and each be a batch of its own."""
    task.load_dataset("train")
    dataset = task.dataset("train")
    assert dataset.get_batch_shapes() is None
    dataset.buckets, dataset.slots = [(None, 4), (None, 9)], 12
    assert dataset.get_batch_shapes() == [(None, 16), (None, 21)]


@pytest.mark.parametrize(
    ("asked", "fault"),
    [
        ({"fp16": True}, "fairseq-train: --fp16: needs a GPU"),
        ({"amp": True}, "fairseq-train: --amp: needs a GPU"),
        ({"tpu": True}, "fairseq-train: --bf16, --tpu: both are for a TPU"),
        ({"fp16": True, "memory_efficient_fp16": True}, None),
        ({}, None),
    ],
)
def test_precisions_that_need_another_device(asked: dict[str, bool], fault: str | None) -> None:
    names = ("fp16", "amp", "tpu", "memory_efficient_fp16")
    cfg = Namespace(cpu=True, **{**dict.fromkeys(names, False), **asked})
    with pytest.raises(SystemExit, match=f"^{fault}") if fault else nullcontext():
        refuse_precision(cfg)
