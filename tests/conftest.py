"""Tiny random models and batches, built without a command line."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerModel, base_architecture

import specdec_plugins  # noqa: F401  (registers the plugin)


def make_dictionary(words: int = 20) -> Dictionary:
    dictionary = Dictionary()
    for index in range(words):
        dictionary.add_symbol(f"w{index}")
    return dictionary


def make_task(dictionary: Dictionary | None = None, **cfg: Any) -> Namespace:
    dictionary = dictionary or make_dictionary()
    settings: dict[str, Any] = {"block_size": 4, "AR_path": None, **cfg}
    return Namespace(
        source_dictionary=dictionary,
        target_dictionary=dictionary,
        cfg=Namespace(**settings),
        verifier=None,
    )


def make_verifier(task: Namespace | None = None, seed: int = 0, **overrides: Any) -> Any:
    """A random fairseq Transformer in float64, with sharp enough scores to have no near-ties."""
    torch.manual_seed(seed)
    args = Namespace(
        encoder_layers=2,
        decoder_layers=2,
        encoder_embed_dim=16,
        decoder_embed_dim=16,
        encoder_ffn_embed_dim=32,
        decoder_ffn_embed_dim=32,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        max_source_positions=64,
        max_target_positions=64,
        dropout=0.0,
    )
    for name, value in overrides.items():
        setattr(args, name, value)
    base_architecture(args)
    model = TransformerModel.build_model(args, task or make_task())
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model.double().eval()


def make_batch(lengths: list[int], vocabulary: int = 24, seed: int = 0, pad: int = 1) -> Any:
    """Random sources of these lengths (EOS included), left-padded as fairseq does."""
    generator = torch.Generator().manual_seed(seed)
    width = max(lengths)
    tokens = torch.full((len(lengths), width), pad)
    for row, length in enumerate(lengths):
        tokens[row, width - length : width - 1] = torch.randint(
            4, vocabulary, (length - 1,), generator=generator
        )
        tokens[row, width - 1] = 2
    return {
        "id": torch.arange(len(lengths)),
        "net_input": {"src_tokens": tokens, "src_lengths": torch.tensor(lengths)},
    }


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    """Tiny matrices: threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
