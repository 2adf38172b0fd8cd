"""``block`` is the published drafter: names, flags, start, forward, loss and gradients."""

from __future__ import annotations

import copy
import math
from argparse import Namespace
from typing import Any

import pytest
import torch
from conftest import make_dictionary, make_task, make_verifier
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.optim.adam import Adam
from helpers.models.drafters import (
    PUBLISHED,
    batch_of,
    block_args,
    every_slots_logits,
    golden,
    make_block,
    make_targets,
    needs_published,
    published_drafter,
    published_task,
    slot_logits,
)

from specdec_plugins.checkpoints.loading import load_state
from specdec_plugins.criterions.glat_loss import GlatLoss, GlatLossConfig
from specdec_plugins.files.output import JsonObject
from specdec_plugins.host.checkpoints import without_copies
from specdec_plugins.models.block_nat import UNSUPPORTED, BlockDrafter
from specdec_plugins.models.drafter_decoder import Slots

PAD, EOS, UNK = 1, 2, 3

VARIANTS: dict[str, dict[str, Any]] = {
    "copy": {},
    "no copy": {"src_embedding_copy": False},
    "learned": {"encoder_learned_pos": True, "decoder_learned_pos": True},
    "pre-norm": {"encoder_normalize_before": True, "decoder_normalize_before": True},
    "gelu": {"activation_fn": "gelu"},
    "shared": {"share_all_embeddings": True},
    "published": {
        "encoder_learned_pos": True,
        "decoder_learned_pos": True,
        "activation_fn": "gelu",
        "share_all_embeddings": True,
        "apply_bert_init": True,
    },
}


def published_forward(model: Any, source: torch.Tensor, prefix: torch.Tensor) -> torch.Tensor:
    """Logits ``(slots, vocab)`` for one sentence, step by step as the reference describes it."""
    encoder, decoder = model.encoder, model.decoder
    words = encoder.embed_tokens.weight[source]
    inputs = words + encoder.embed_positions(source[None])[0]
    states = inputs[:, None]
    for layer in encoder.layers:
        states = layer(states, encoder_padding_mask=None)
    if encoder.layer_norm is not None:
        states = encoder.layer_norm(states)

    tokens = torch.cat([prefix, torch.full((model.block_size,), UNK)])
    positions = decoder.embed_positions(torch.full((1, len(tokens)), 5))[0]
    h = decoder.embed_tokens.weight[tokens]
    if decoder.copy_attn is not None:
        attention = decoder.copy_attn(positions) @ inputs.T
        h = torch.where((tokens == UNK)[:, None], attention.softmax(-1) @ words, h)
    h = h[:, None]
    for layer in decoder.layers:
        h = layer(h + positions[:, None], encoder_out=states)[0]
    if decoder.layer_norm is not None:
        h = decoder.layer_norm(h)
    return h[len(prefix) :, 0] @ decoder.output_projection.weight.T


@pytest.mark.usefixtures("exact_softmax")
@pytest.mark.parametrize("name", VARIANTS)
def test_forward_is_the_published_one(name: str) -> None:
    model = make_block(make_task(block_size=4), **VARIANTS[name])
    lengths, cuts = [7, 1, 4, 9], torch.tensor([[3], [0], [3], [6]])
    source = make_targets([5, 8, 2, 6], seed=1).flip(1)  # left padding, as fairseq's default
    target = make_targets(lengths, seed=2)
    target[0, 1] = UNK  # which stands for a mask, in a prefix too
    logits = every_slots_logits(model, source, torch.tensor([5, 8, 2, 6]), target, cuts)
    assert logits.shape == (4, 1, 4, 24)
    for row, cut in enumerate(cuts[:, 0].tolist()):
        own = source[row][source[row] != PAD]
        expected = published_forward(model, own, target[row, :cut])
        torch.testing.assert_close(logits[row, 0], expected, atol=1e-10, rtol=1e-9)


def test_right_padded_sources_are_the_same_sentences() -> None:
    model = make_block()
    lengths = torch.tensor([5, 8, 2])
    right = make_targets(lengths.tolist(), seed=1)
    left = torch.stack([row.roll(int((row == PAD).sum())) for row in right])
    target, cuts = make_targets([6, 3, 7], seed=2), torch.tensor([[2], [0], [5]])
    batches = [batch_of(source, lengths, target, cuts) for source in (left, right)]
    outputs = [slot_logits(model(batch)) for batch in batches]
    torch.testing.assert_close(*outputs, atol=1e-6, rtol=1e-6)


def test_a_revealed_slot_is_read_as_its_token() -> None:
    model = make_block(make_task(block_size=4))
    source, target = make_targets([5], seed=1), make_targets([9], seed=2)
    torch.manual_seed(0)
    batch = batch_of(source, torch.tensor([5]), target, torch.tensor([[2]]))
    output, first = model({**batch, "glancing_ratio": 0.6}), model(batch)
    wrong = int((slot_logits(first).argmax(-1) != output.blocks.gold).sum())
    revealed = output.blocks.scored & ~output.scored
    assert int(revealed.sum()) == math.floor(wrong * 0.6) > 0
    # The same pass again, with those tokens put where the masks were.
    tokens = torch.cat([target[:, :2], target[:, 2:6].masked_fill(~revealed[0], UNK)], dim=1)
    table = model.decoder.positions(6)
    encoder_out = model.encode(source, torch.tensor([5]))
    copies = model.decoder.copies(encoder_out, None, table)
    positions = torch.arange(6)[None]
    is_mask = torch.zeros(1, 6, dtype=torch.bool)
    x = model.decoder.embed(Slots(tokens, is_mask, positions, table, [], None, copies, None))
    h = x.transpose(0, 1)
    for layer in model.decoder.layers:
        h = layer(h + table[:, None], encoder_out=encoder_out["encoder_out"][0])[0]
    expected = model.decoder.output_projection(h[2:, 0])
    torch.testing.assert_close(slot_logits(output)[0, 0], expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(slot_logits(output), slot_logits(first))


@pytest.mark.parametrize("arch", ["block", "block_base", "block_6e6d512"])
def test_defaults_of_the_architectures(arch: str) -> None:
    args = Namespace()
    ARCH_CONFIG_REGISTRY[arch](args)
    for side in ("encoder", "decoder"):
        sizes = [
            getattr(args, f"{side}_{name}")
            for name in ("layers", "embed_dim", "ffn_embed_dim", "attention_heads")
        ]
        assert sizes == [6, 512, 2048, 8]
    assert not args.src_embedding_copy
    assert not args.apply_bert_init


@pytest.mark.parametrize("flag", [*UNSUPPORTED, "decoder_input_dim", "decoder_output_dim"])
def test_a_flag_that_cannot_be_honoured_is_refused_by_name(flag: str) -> None:
    with pytest.raises(ValueError, match=f"--{flag.replace('_', '-')}: not supported"):
        make_block(**{flag: "4,8" if flag.startswith("adaptive") else True})


def test_one_table_needs_one_dictionary() -> None:
    task = make_task()
    task.target_dictionary = make_dictionary(21)
    with pytest.raises(ValueError, match="--share-all-embeddings requires a joined dictionary"):
        make_block(task, share_all_embeddings=True)
    with pytest.raises(ValueError, match="--share-all-embeddings requires"):
        make_block(share_all_embeddings=True, encoder_embed_dim=32)
    model = make_block(task)
    assert model.encoder.embed_tokens.num_embeddings == 24
    assert model.decoder.output_projection.out_features == 25


def test_state_dict_names_are_a_transformers_and_the_copy() -> None:
    stock = make_verifier(encoder_learned_pos=True, decoder_learned_pos=True).state_dict()
    names = set(make_block(encoder_learned_pos=True, decoder_learned_pos=True).state_dict())
    assert names - set(stock) == {"decoder.copy_attn.weight"}
    assert set(stock) <= names
    plain = make_block(src_embedding_copy=False).state_dict()
    assert "decoder.copy_attn.weight" not in plain


def test_bert_init() -> None:
    torch.manual_seed(0)
    args = block_args(
        encoder_embed_dim=64, decoder_embed_dim=64, apply_bert_init=True, share_all_embeddings=True
    )
    args.encoder_learned_pos = args.decoder_learned_pos = True
    model = BlockDrafter.build_model(args, make_task(make_dictionary(200)))
    for name, parameter in without_copies(dict(model.named_parameters())).items():
        if "layer_norm" in name:
            continue
        if name.endswith("bias"):
            assert not parameter.any(), name
        else:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.15), name
            assert abs(parameter.mean().item()) < 0.003, name
    # As published: the tied output layer is drawn last, so its pad row is not zero.
    assert model.decoder.embed_tokens.weight[PAD].any()
    for positions in (model.encoder.embed_positions, model.decoder.embed_positions):
        assert not positions.weight[PAD].any()


def test_a_prenorm_drafter_without_its_final_norm_is_built_from_its_file() -> None:
    """The published initialisation dropped ``decoder.version``, and with it the final norm."""
    overrides = {"decoder_normalize_before": True}
    saved = make_block(**overrides).state_dict()
    for key in ("decoder.layer_norm.weight", "decoder.layer_norm.bias"):
        del saved[key]
    saved["decoder.version"] = torch.Tensor([1])
    model = make_block(seed=1, **overrides)
    model.load_state_dict(saved, strict=True)
    assert model.decoder.layer_norm is None

    complete = make_block(**overrides).state_dict()
    model = make_block(seed=1, **overrides)
    model.load_state_dict(complete, strict=True)
    assert model.decoder.layer_norm is not None


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("learned", [False, True])
def test_an_encoder_only_file_keeps_the_drafters_decoder(learned: bool, shared: bool) -> None:
    sizes = {"share_all_embeddings": shared, "decoder_normalize_before": True}
    stock = without_copies(make_verifier().state_dict())
    state = {key: tensor for key, tensor in stock.items() if key.startswith("encoder.")}
    # What other versions of fairseq saved as well.
    state["encoder.embed_positions._float_tensor"] = torch.zeros(1)
    state["encoder.layers.0.in_proj_weight"] = torch.zeros(48, 16)
    model = make_block(encoder_learned_pos=learned, decoder_learned_pos=True, **sizes)
    before = copy.deepcopy(model.state_dict())
    model.load_state_dict(state, strict=True)
    after = model.state_dict()
    assert model.decoder.layer_norm is not None
    tied = ("decoder.embed_tokens.weight", "decoder.output_projection.weight")
    for key, tensor in without_copies(after).items():
        if key in tied and shared:
            assert torch.equal(tensor, stock["encoder.embed_tokens.weight"])
        elif key in stock and key.startswith("encoder."):
            assert torch.equal(tensor, stock[key]), key
        else:
            assert torch.equal(tensor, before[key]), key


def test_positions_leave_room_for_the_block() -> None:
    model = make_block(make_task(block_size=5), decoder_learned_pos=True, encoder_learned_pos=True)
    assert model.max_positions() == (64, 59)
    target = make_targets([59])
    output = model(batch_of(make_targets([64]), torch.tensor([64]), target, torch.tensor([[58]])))
    assert slot_logits(output).isfinite().all()
    assert output.blocks.positions.max().item() == 62


def test_positions_are_those_of_the_verifier_too() -> None:
    """Else its states for a longer sentence would be read behind its table."""
    model = make_block(make_task(block_size=5), decoder_learned_pos=True, encoder_learned_pos=True)
    short = {"max_source_positions": 9, "max_target_positions": 7}
    model.attach_verifier(make_verifier(**short))
    assert model.max_positions() == (9, 7)


@needs_published
class TestPublishedPair:
    """Against what the published code computed with its own checkpoint."""

    def test_encoder_and_logits(self) -> None:
        file, model = golden("drafter_forward.pt"), published_drafter()
        batch = file["batch"]
        cuts = file["block_mask"].long().argmax(1)[:, None]
        encoder_out = model.encode(batch["src_tokens"], batch["src_lengths"])
        real = ~file["encoder_padding_mask"].T
        torch.testing.assert_close(
            encoder_out["encoder_out"][0][real], file["encoder_out_TBC"][real], atol=1e-5, rtol=0
        )
        inputs = (batch["src_tokens"], batch["src_lengths"], batch["target"], cuts)
        logits = every_slots_logits(model, *inputs)
        torch.testing.assert_close(logits[:, 0], file["block_logits"], atol=1e-5, rtol=1e-5)

    @staticmethod
    def loss(
        model: BlockDrafter, batch: Any, cuts: torch.Tensor
    ) -> tuple[torch.Tensor, JsonObject]:
        criterion = GlatLoss(published_task(), GlatLossConfig(label_smoothing=0.1))
        sample = {
            "net_input": {"src_tokens": batch["src_tokens"], "src_lengths": batch["src_lengths"]},
            "target": batch["target"],
            "ntokens": batch["ntokens"],
            "cuts": cuts,
            "seeds": torch.arange(len(cuts)),
            "glancing_ratio": 0.0,
        }
        loss, size, log = criterion(model, sample)
        return loss / size, log

    @pytest.mark.parametrize("index", range(8))
    def test_loss(self, index: int) -> None:
        file = golden("loss.pt")
        cuts = golden("noise.pt")["noise"][index]["prefix_len"][:, None]
        (item,) = (
            i for i in file["items"] if i["noise_seed"] == index and i["name"] == "context_p_0"
        )
        loss, log = self.loss(published_drafter(), file["batch"], cuts)
        assert loss.item() == pytest.approx(item["loss"], abs=1e-5)
        nll = log["nll_loss"] / log["sample_size"]
        assert nll.item() == pytest.approx(item["nll_loss"], abs=1e-5)
        assert log["sample_size"].item() == item["scored"]

    def test_five_updates(self) -> None:
        file = golden("train5.pt")
        model = copy.deepcopy(published_drafter()).requires_grad_(True)
        settings = {"betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.01}
        optimizer = Adam(model.parameters(), lr=file["lr"], **settings)
        for step in file["steps"]:
            noise = golden("noise.pt")["noise"][step["noise_seed"]]
            optimizer.zero_grad()
            loss, _ = self.loss(model, file["batch"], noise["prefix_len"][:, None])
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), file["clip"])
            optimizer.step()
            assert loss.item() == pytest.approx(step["loss"], abs=1e-4)
            assert norm.item() == pytest.approx(step["gnorm"], rel=1e-3)
        parameters = dict(model.named_parameters(remove_duplicate=False))
        for name, expected in file["param_norms"].items():
            if name in parameters:
                norm = parameters[name].norm().item()
                assert norm == pytest.approx(expected, rel=1e-3, abs=1e-4), name

    def test_the_start_is_drawn_alike(self) -> None:
        expected = golden("encoder_init.json")
        args = copy.deepcopy(load_state(PUBLISHED / "drafter.pt")["cfg"]["model"])
        torch.manual_seed(0)
        model = BlockDrafter.build_model(args, published_task())
        state = model.state_dict()
        for name, (_, std) in expected["fresh_init_mean_std"].items():
            found = state[name].double().std(correction=0).item()
            assert found == pytest.approx(std, rel=0.05, abs=1e-6), name
        for name, zero in expected["pad_row_zero"].items():
            assert (not state[name][PAD].any()) == zero, name
