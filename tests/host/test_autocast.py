from __future__ import annotations

import pytest
import torch
from torch import nn

from specdec_plugins.host.fairseq_types import Sample
from specdec_plugins.host.training import SHORT, autocast


def batch(source: int, target: int) -> Sample:
    return {
        "net_input": {"src_tokens": torch.ones(2, source)},
        "target": torch.ones(2, target),
    }


class TestAutocast:
    @pytest.mark.parametrize(
        ("source", "target", "fused"),
        [(SHORT, SHORT, False), (SHORT + 1, 5, True), (5, SHORT + 1, True)],
    )
    def test_short_sentences_are_attended_to_by_plain_products(
        self, source: int, target: int, fused: bool
    ) -> None:
        with autocast("bfloat16", nn.Linear(2, 2), batch(source, target)):
            assert torch.get_autocast_dtype("cpu") == torch.bfloat16
            assert torch.is_autocast_enabled("cpu")
            assert torch.backends.cuda.flash_sdp_enabled() == fused
            assert torch.backends.cuda.math_sdp_enabled()
        assert torch.backends.cuda.flash_sdp_enabled()
        assert not torch.is_autocast_enabled("cpu")
