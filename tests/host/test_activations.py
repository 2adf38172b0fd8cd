"""fairseq's ``swish``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

import pytest
import torch
from conftest import make_batch, make_verifier
from fairseq import utils
from fairseq.models import ARCH_MODEL_REGISTRY

from specdec_plugins.checkpoints.config import saved_model


def test_swish_is_a_function() -> None:
    x = torch.linspace(-4, 4, 9)
    torch.testing.assert_close(utils.get_activation_fn("swish")(x), x * x.sigmoid())
    assert utils.get_activation_fn("relu") is torch.nn.functional.relu
    with torch.no_grad():
        assert make_verifier(activation_fn="swish").encoder(**make_batch([4, 6])["net_input"])[
            "encoder_out"
        ]


@pytest.mark.parametrize("arch", ["transformer", "block"])
def test_it_is_a_choice(arch: str) -> None:
    parser = ArgumentParser()
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    args = parser.parse_args(["--activation-fn", "swish"])
    assert args.activation_fn == "swish"


def test_checkpoints_may_name_it() -> None:
    config = {"_name": "transformer", "arch": "transformer", "activation_fn": "swish"}
    assert saved_model(Namespace(**config)).activation_fn == "swish"
