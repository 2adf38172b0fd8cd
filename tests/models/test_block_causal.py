"""``block_causal``: a cached causal prefix, blocks that do not see each other, a lent verifier."""

from __future__ import annotations

import copy
from argparse import Namespace
from typing import Any

import pytest
import torch
from conftest import make_task, make_verifier
from helpers.models.drafters import CAUSAL as VARIANTS
from helpers.models.drafters import (
    batch_of,
    every_slots_logits,
    make_block,
    make_causal,
    make_targets,
    slot_logits,
    slot_scores,
)

from specdec_plugins.host.checkpoints import without_copies
from specdec_plugins.models.drafter_decoder import Slots
from specdec_plugins.models.training_pass import SlotTargets

PAD, EOS = 1, 2


pytestmark = pytest.mark.usefixtures("exact_softmax")


def task_with_verifier(block_size: int = 4, **overrides: Any) -> Namespace:
    task = make_task(block_size=block_size)
    task.verifier = make_verifier(**overrides).requires_grad_(False)
    return task


def drafter_of(name: str, block_size: int = 4, **overrides: Any) -> Any:
    return make_causal(task_with_verifier(block_size), **{**VARIANTS[name], **overrides})


def inputs(lengths: list[int], cuts: list[list[int]], seed: int = 0) -> tuple[torch.Tensor, ...]:
    source_lengths = [5, 8, 2, 6][: len(lengths)]
    source = make_targets(source_lengths, seed=seed + 1).flip(1)
    target = make_targets(lengths, seed=seed + 2)
    return source, torch.tensor(source_lengths), target, torch.tensor(cuts)


@pytest.mark.parametrize("name", VARIANTS)
def test_several_blocks_in_one_pass_equal_each_alone(name: str) -> None:
    model = drafter_of(name)
    *sentence, cuts = inputs([9, 1, 6], [[0, 5, 8], [0, 0, 0], [3, 3, 5]])
    together = model(batch_of(*sentence, cuts))
    assert slot_logits(together).shape == (3, 3, 4, 24)
    for block in range(3):
        alone = model(batch_of(*sentence, cuts[:, block : block + 1]))
        torch.testing.assert_close(
            slot_logits(together)[:, block], slot_logits(alone)[:, 0], atol=1e-11, rtol=1e-10
        )
        assert torch.equal(together.scored[:, block], alone.scored[:, 0])


@pytest.mark.parametrize("name", ["block", *VARIANTS])
def test_a_block_does_not_know_what_follows_the_cut(name: str) -> None:
    model = make_block() if name == "block" else drafter_of(name)
    source, lengths, target, cuts = inputs([9, 7], [[4], [0]])
    other = target.clone()
    other[0, 4:], other[1, :] = 9, 10
    shorter = other[:, :7]
    found = [every_slots_logits(model, source, lengths, t, cuts) for t in (target, other, shorter)]
    assert torch.equal(found[0], found[1])
    torch.testing.assert_close(found[0], found[2], atol=1e-11, rtol=1e-10)
    before = target.clone()
    before[0, 3] = (target[0, 3] - 4 + 1) % 20 + 4
    changed = every_slots_logits(model, source, lengths, before, cuts)
    assert not torch.allclose(changed[0], found[0][0])
    assert torch.equal(changed[1], found[0][1])


def test_the_decoders_input_is_the_verifiers() -> None:
    """Same scale, same positions: what initialisation copies means the same there."""
    model = drafter_of("all of the verifier")
    tokens = torch.randint(4, 24, (2, 7))
    table = model.decoder.positions(7)
    positions = torch.arange(7).expand(2, -1)
    masks = torch.zeros(2, 7, dtype=torch.bool)
    found = model.decoder.embed(Slots(tokens, masks, positions, table, None, None, None, None))
    decoder = model.verifier.decoder
    expected = decoder.embed_scale * decoder.embed_tokens(tokens) + decoder.embed_positions(tokens)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


@torch.no_grad()
def test_masks_are_no_word() -> None:
    """A mask's input is an embedding of its own: a genuine ``<unk>`` is told from it."""
    model = make_causal()
    source, lengths, target, cuts = inputs([9], [[4]])
    target[0, 2] = 3
    batch = batch_of(source, lengths, target, cuts)
    logits = slot_logits(model(batch))
    model.decoder.mask_embedding += 1
    assert not torch.allclose(slot_logits(model(batch)), logits)
    model.decoder.mask_embedding -= 1
    model.decoder.embed_tokens.weight[3] += 1
    assert not torch.allclose(slot_logits(model(batch)), logits)
    target[0, 2] = 7
    without = slot_logits(model(batch))
    model.decoder.embed_tokens.weight[3] += 1
    assert torch.equal(slot_logits(model(batch)), without)


@pytest.mark.parametrize("name", ["shared encoder", "all of the verifier"])
def test_a_lent_verifier_is_neither_stored_nor_trained(name: str) -> None:
    model = drafter_of(name).train()
    verifier = model.verifier
    before = copy.deepcopy(verifier.state_dict())
    theirs = {id(parameter) for parameter in verifier.parameters()}
    assert not any(id(parameter) in theirs for parameter in model.parameters())
    foreign = ("encoder.", "decoder.embed_tokens", "decoder.output_projection", "_verifier")
    assert not [key for key in model.state_dict() if key.startswith(foreign)]

    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    slot_logits(model(batch_of(*inputs([9, 7], [[4], [0]])))).square().mean().backward()
    assert all(p.grad is None for p in verifier.parameters())
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    optimizer.step()
    after = verifier.state_dict()
    assert all(torch.equal(after[key], before[key]) for key in before)
    assert not verifier.training
    # Not even where someone has forgotten to freeze it.
    verifier.requires_grad_(True)
    states: list[Any] = []

    def read(logits: torch.Tensor, targets: SlotTargets) -> tuple[torch.Tensor, ...]:
        states.append(targets.verifier_states)
        return (logits,)

    output = model(batch_of(*inputs([9, 7], [[4], [0]])), read=read, with_verifier=True)
    assert not states[0].requires_grad
    slot_logits(output).square().mean().backward()
    assert all(parameter.grad is None for parameter in verifier.encoder.parameters())


@pytest.mark.parametrize(
    ("name", "options", "fault"),
    [
        ("shared encoder", {"encoder_embed_dim": 8}, "--encoder-embed-dim 8: the verifier's is 16"),
        (
            "all of the verifier",
            {"verifier_feature_layers": "9"},
            "--verifier-feature-layers 9: the verifier has 2",
        ),
    ],
)
def test_a_verifier_that_does_not_fit_is_refused(
    name: str, options: dict[str, Any], fault: str
) -> None:
    task = task_with_verifier()
    with pytest.raises(ValueError, match=fault):
        make_causal(task, **{**VARIANTS[name], **options})


def test_features_of_several_layers() -> None:
    """In their order, each normalised, before the states that predict the target; one is read
    once."""
    task = task_with_verifier()
    model = make_causal(task, verifier_features=True, verifier_feature_layers="2,1,2")
    source, lengths, target = torch.tensor([[5, 6, 2]]), torch.tensor([3]), torch.tensor([[7, 8]])
    given = source, lengths, target, model.encode(source, lengths)
    states, features = model.verifier_states(*given)
    encoder_out = task.verifier.encoder(source, src_lengths=lengths)
    shifted = torch.tensor([[2, 7]])
    expected, extra = task.verifier.decoder(shifted, encoder_out=encoder_out)
    torch.testing.assert_close(task.verifier.decoder.output_layer(states), expected)
    inner = [extra["inner_states"][layer].transpose(0, 1) for layer in (1, 2)]
    expected = [(x - x.mean(-1, True)) / (x.var(-1, False, True) + 1e-5).sqrt() for x in inner]
    torch.testing.assert_close(features, torch.cat([*expected, states], dim=-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, None])
@pytest.mark.parametrize("name", ["block", *VARIANTS])
def test_forward_and_backward_in_every_type(name: str, dtype: torch.dtype | None) -> None:
    """None: under autocast, where before 2.10 torch hands the second pass of glancing what it made
    in the first, which has no gradients."""
    autocasts = dtype is None
    dtype = dtype or torch.float32
    model = make_block() if name == "block" else drafter_of(name, dropout=0.1)
    model = model.to(dtype).train()
    if name != "block":
        # The verifier follows the drafter wherever it goes.
        assert next(model.verifier.parameters()).dtype == dtype
        assert not model.verifier.training
    *sentence, cuts = inputs([9, 1, 6], [[4], [0], [5]])
    torch.manual_seed(0)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocasts):
        output = model({**batch_of(*sentence, cuts), "glancing_ratio": 0.5})
        assert slot_logits(output).dtype == (torch.bfloat16 if autocasts else dtype)
        slot_logits(output).float().square().mean().backward()
    parameters = dict(model.named_parameters())
    trained = without_copies(parameters)
    for key, parameter in trained.items():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
    # What gets no gradient is frozen, or else data-parallel training would wait for it.
    assert {key for key, p in parameters.items() if p.requires_grad} == set(trained)


class TestPreviousTokenHead:
    """``--previous-token-head``: a slot's token is chosen knowing the one before it."""

    def test_it_starts_as_no_head_at_all(self) -> None:
        torch.manual_seed(0)
        plain = make_causal(spread=False)
        headed = make_causal(spread=False, previous_token_head=True)
        missing = headed.load_state_dict(plain.state_dict(), strict=False).missing_keys
        assert missing
        assert all(key.startswith("decoder.previous.") for key in missing)
        batch = batch_of(*inputs([9, 7], [[4], [0]]))
        assert torch.equal(slot_logits(headed(batch)), slot_logits(plain(batch)))

    @pytest.mark.parametrize("name", ["plain", "all of the verifier"])
    def test_training_gives_the_true_previous_token(self, name: str) -> None:
        model = drafter_of(name, previous_token_head=True)
        source, lengths, target, cuts = inputs([9, 7], [[4], [0]])
        logits = slot_logits(model(batch_of(source, lengths, target, cuts)))
        for row, cut in enumerate(cuts[:, 0].tolist()):
            other = target.clone()
            # The last slot sees the one before it, and that alone of the block.
            other[row, cut + 2] = (target[row, cut + 2] - 4 + 1) % 20 + 4
            changed = slot_logits(model(batch_of(source, lengths, other, cuts)))[row, 0]
            assert torch.equal(changed[:3], logits[row, 0, :3])
            assert not torch.allclose(changed[3], logits[row, 0, 3])

    def test_some_predecessors_are_hidden_in_training_only(self) -> None:
        model = drafter_of("plain", previous_token_head=True)
        batch = batch_of(*inputs([9, 7], [[4], [0]]))
        other = {**batch, "seeds": batch["seeds"] + 1}
        assert torch.equal(slot_logits(model(batch)), slot_logits(model(other)))
        model.train()
        assert not torch.equal(slot_logits(model(batch)), slot_logits(model(other)))

    @pytest.mark.parametrize("candidates", [1, 8, 24])
    def test_tokens_are_chosen_in_sequence_among_candidates(
        self, candidates: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = drafter_of("plain", previous_token_head=True)
        decoder, head = model.decoder, model.decoder.previous
        monkeypatch.setattr(type(head), "CANDIDATES", candidates)
        torch.manual_seed(0)
        with torch.no_grad():
            head.unknown.normal_()
        x = torch.randn(5, 6, 16, dtype=torch.float64)
        last = torch.tensor([EOS, 4, 9, 3, 20])
        table = decoder.embed_scale * decoder.embed_tokens.weight

        def scores(state: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
            logits = decoder.output_projection(head(state, embedded))
            logits[PAD] = -torch.inf
            return logits

        found = slot_scores(model, x, last)
        tokens, confidences = found.choose_with_confidence()
        assert torch.equal(tokens, found.choose())
        for row, drafted in enumerate(tokens.tolist()):
            before = scores(x[row, 0], table[last[row]])
            best = before.topk(candidates).indices
            chosen, sure = [int(best[0])], [before[best].softmax(-1).max()]
            for slot in range(1, 6):
                best = scores(x[row, slot], head.unknown).topk(candidates).indices
                given = scores(x[row, slot], table[chosen[-1]])[best]
                chosen.append(int(best[given.argmax()]))
                sure.append(given.softmax(-1).max())
            assert drafted == chosen
            torch.testing.assert_close(confidences[row], torch.stack(sure).float())


def test_placeholders_of_another_version_of_fairseq() -> None:
    """Tables of sinusoidal positions had one in fairseq 0.12.2; exported files have none."""
    model = make_causal(make_task(block_size=4))
    placeholder = "decoder.embed_positions._float_tensor"
    saved = {key: value for key, value in model.state_dict().items() if key != placeholder}
    model.load_state_dict(dict(saved))
    model.load_state_dict({**saved, placeholder: torch.zeros(1)})
    model.decoder.embed_positions.register_buffer("_float_tensor", torch.zeros(1))
    model.upgrade_state_dict(saved)
    assert placeholder in saved
