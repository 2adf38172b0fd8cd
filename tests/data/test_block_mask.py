"""Cuts, blocks and glancing, against loops written out."""

from __future__ import annotations

import math

import pytest
import torch
from conftest import examples
from helpers.models.drafters import (
    batch_of,
    golden,
    needs_published,
    published_drafter,
    slot_logits,
)
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.data.block_mask import (
    CUTS,
    GLANCING,
    HIDING,
    Blocks,
    glance,
    sample_cuts,
    sentence_seeds,
    sentence_uniforms,
)

PAD, UNK, EOS = 1, 3, 2


def grid(count: int) -> torch.Tensor:
    """Evenly spread numbers: whatever is uniform comes out exactly so."""
    return (torch.arange(count, dtype=torch.float64)[:, None] + 0.5) / count


@pytest.mark.parametrize("length", range(1, 13))
def test_cuts_are_uniform_on_all_prefixes(length: int) -> None:
    each = 20
    uniforms = grid(each * length)
    cuts = sample_cuts(torch.full((len(uniforms),), length), uniforms)
    assert torch.bincount(cuts.flatten()).tolist() == [each] * length


@pytest.mark.parametrize("blocks", [2, 3, 4])
def test_several_blocks_are_spread_over_the_sentence(blocks: int) -> None:
    part, each = 5, 8
    length = blocks * part
    uniforms = grid(each * part).expand(-1, blocks)
    cuts = sample_cuts(torch.full((len(uniforms),), length), uniforms)
    for block in range(blocks):
        # The c-th block from the end has the c-th part of the sentence, all of it, evenly.
        first = length - (block + 1) * part
        assert torch.bincount(cuts[:, block]).tolist() == [0] * first + [each] * part


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    blocks=st.integers(1, 3),
    size=st.integers(1, 6),
    seed=st.integers(0, 99),
)
def test_blocks_hold_what_follows_the_cut(
    lengths: list[int], blocks: int, size: int, seed: int
) -> None:
    torch.manual_seed(seed)
    target = torch.full((len(lengths), max(lengths)), PAD)
    for row, length in enumerate(lengths):
        target[row, :length] = torch.randint(4, 20, (length,))
        target[row, length - 1] = EOS
    cuts = sample_cuts(torch.tensor(lengths), torch.rand(len(lengths), blocks))
    cut = Blocks.cut(target, cuts, size, PAD)
    assert torch.equal(cut.cuts, cuts)
    for row, length in enumerate(lengths):
        for block in range(blocks):
            start = int(cuts[row, block])
            expected = [t for t in target[row].tolist()[start : start + size] if t != PAD]
            scored = min(size, length - start)
            assert len(expected) == scored >= 1
            gold = expected + [PAD] * (size - scored)
            assert cut.positions[row, block].tolist() == list(range(start, start + size))
            assert cut.gold[row, block].tolist() == gold
            assert cut.scored[row, block].tolist() == [slot < scored for slot in range(size)]


@examples(200)
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 12)),
    right=st.floats(0, 1),
    visible=st.floats(0, 1),
    ratio=st.integers(0, 64).map(lambda n: n / 64),
    seed=st.integers(0, 99),
)
def test_glancing_reveals_a_part_of_what_is_wrong(
    shape: tuple[int, int, int], right: float, visible: float, ratio: float, seed: int
) -> None:
    torch.manual_seed(seed)
    gold = torch.randint(4, 20, shape)
    predicted = torch.where(torch.rand(shape) < right, gold, gold + 1)
    scored = torch.rand(shape) < visible
    revealed = glance(gold, predicted, scored, ratio, torch.rand(shape))
    assert not bool((revealed & ~scored).any())
    for row in range(shape[0]):
        for block in range(shape[1]):
            where = scored[row, block]
            wrong = int((predicted[row, block] != gold[row, block])[where].sum())
            assert int(revealed[row, block].sum()) == math.floor(wrong * ratio)


@needs_published
@pytest.mark.parametrize("index", range(8))
def test_published_noise_is_reproduced(index: int) -> None:
    file = golden("noise.pt")
    batch, item = file["batch"], file["noise"][index]
    lengths = batch["target"].ne(PAD).sum(1)
    cuts = sample_cuts(lengths, item["uniform"][:, None])
    assert cuts[:, 0].tolist() == item["prefix_len"].tolist()
    torch.manual_seed(item["seed"])
    assert torch.equal(torch.rand(len(lengths)), item["uniform"])

    size = batch["block_size"]
    blocks = Blocks.cut(batch["target"], cuts, size, PAD)
    width = int(cuts.max()) + size
    masked = torch.full((len(lengths), width), PAD)
    target = torch.full((len(lengths), width), PAD)
    for row, length in enumerate(lengths.tolist()):
        start = int(cuts[row])
        kept = min(length, width)
        target[row, :kept] = batch["target"][row, :kept]
        masked[row, :start] = batch["target"][row, :start]
        masked[row, start : start + size] = UNK
        assert torch.equal(blocks.gold[row, 0], target[row, start : start + size])
    assert torch.equal(masked, item["prev_output_tokens"])
    assert torch.equal(target, item["target"])


@needs_published
@pytest.mark.parametrize("index", range(8))
def test_published_glancing_counts_are_reproduced(index: int) -> None:
    file = golden("loss.pt")
    batch, items = file["batch"], file["items"]
    (plain,) = (i for i in items if i["noise_seed"] == index and i["name"] == "context_p_0")
    (glanced,) = (i for i in items if i["noise_seed"] == index and i["name"] == "context_p_0.5")
    cuts = golden("noise.pt")["noise"][index]["prefix_len"][:, None]
    inputs = batch["src_tokens"], batch["src_lengths"], batch["target"]
    output = published_drafter()(batch_of(*inputs, cuts))
    blocks = output.blocks
    assert int(blocks.scored.sum()) == plain["scored"]
    accuracy = output.glanced_correct.sum() / blocks.scored.sum()
    assert accuracy.item() == pytest.approx(glanced["logging"]["glat_accu"])
    predicted = slot_logits(output).argmax(-1)
    revealed = glance(blocks.gold, predicted, blocks.scored, 0.5, torch.rand(predicted.shape))
    before, after = plain["loss_targets"].ne(PAD).sum(1), glanced["loss_targets"].ne(PAD).sum(1)
    assert torch.equal(revealed.sum((1, 2)), before - after)


def splitmix64(state: int) -> int:
    """The published generator's output for a state, on Python's integers."""
    z = state % 2**64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z >> 31)


@given(
    ids=st.lists(st.integers(0, 2**40), min_size=1, max_size=5),
    seed=st.integers(0, 2**64 - 1),
    stream=st.integers(0, 2),
)
def test_sentence_uniforms_are_those_of_splitmix64(ids: list[int], seed: int, stream: int) -> None:
    gamma = 0x9E3779B97F4A7C15
    seeds = sentence_seeds(torch.tensor(ids), seed)
    found = sentence_uniforms(seeds, stream, 2, 3)
    for row, index in enumerate(ids):
        own = splitmix64(splitmix64(index) + seed % 2**63 * gamma)
        assert seeds[row].item() % 2**64 == own
        states = [own + gamma * (stream * 2**32 + number) for number in range(1, 7)]
        expected = [(splitmix64(state) >> 40) / 2**24 for state in states]
        assert found[row].flatten().tolist() == expected


def test_sentence_noise_is_uniform_and_new_for_every_update_sentence_and_stream() -> None:
    ids = torch.arange(500)
    draws = torch.stack(
        [
            sentence_uniforms(sentence_seeds(ids, update), stream, 8).double()
            for update in (1, 2)
            for stream in (CUTS, GLANCING, HIDING)
        ]
    )
    # (draws, sentences, 8): any two neighbours along any axis are uncorrelated.
    spread = 4 / math.sqrt(draws.numel())
    centred = (draws - 0.5) * math.sqrt(12)
    assert abs(centred.mean().item()) < spread
    assert abs(centred.square().mean().item() - 1) < spread
    for axis in range(3):
        size = draws.size(axis) - 1
        products = centred.narrow(axis, 0, size) * centred.narrow(axis, 1, size)
        assert abs(products.mean().item()) < 4 / math.sqrt(products.numel())
    counts = torch.histc(draws, bins=16, min=0, max=1)
    expected = draws.numel() / 16
    assert ((counts - expected).square() / expected).sum() < 38  # chi-square, dof 15, p 0.001
