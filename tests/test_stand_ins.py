"""Verifiers as people have them: each translates as stock fairseq does with the same file."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_batch, make_task
from drafters import make_causal
from stand_ins import STAND_INS, StandIn, begun, read_by_fairseq
from strict import assert_beam1, beam1

from specdec_plugins.checkpoints.export import export_checkpoint
from specdec_plugins.checkpoints.pair import load_verifier
from specdec_plugins.decoding.build import build_generator
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.host.checkpoints import without_copies

LIMITS = GenerationLimits(max_len_b=20)


class Pair:
    """A stand-in read by us and by fairseq, and a random drafter for it."""

    def __init__(self, kind: StandIn, folder: Path) -> None:
        self.path = path = kind.save(folder / "verifier.pt")
        self.stock_task, task = kind.stock_task(folder), kind.task()
        self.stock = read_by_fairseq(path, self.stock_task)
        self.ours = load_verifier(path, task).double()
        names = make_task(task.source_dictionary, block_size=4)
        names.target_dictionary = self.target = task.target_dictionary
        self.drafter = make_causal(names)
        self.words = len(kind.dictionaries[0])

    def batch(self, lengths: list[int]) -> tuple[Any, dict[str, Any]]:
        """A batch, and what its targets begin with."""
        return begun(self.stock_task, make_batch(lengths, self.words, seed=4))


@pytest.fixture(scope="module", params=STAND_INS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(STAND_INS[request.param], tmp_path_factory.mktemp("stand_in"))


@pytest.mark.usefixtures("exact_softmax")
@pytest.mark.parametrize("lengths", [[8], [9, 4, 6]])
def test_output_is_stock_fairseqs(pair: Pair, lengths: list[int]) -> None:
    batch, begin = pair.batch(lengths)
    for drafter in (None, pair.drafter):
        options: Any = {"block_size": 4, "limits": LIMITS}
        generator: Any = build_generator(pair.ours, drafter, pair.target, **options)
        outputs = [hypothesis for (hypothesis,) in generator.generate([], batch, **begin)]
        assert_beam1(outputs, batch, pair.stock, LIMITS, **begin)


def test_output_is_lively(pair: Pair) -> None:
    """Otherwise equality would show little."""
    batch, begin = pair.batch([9] * 12)
    outputs = [best["tokens"].tolist() for best in beam1(pair.stock, batch, LIMITS, **begin)]
    assert len(set(map(tuple, outputs))) > 5
    assert len({token for output in outputs for token in output}) > 6


def test_an_export_is_the_same(pair: Pair, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    export_checkpoint(str(pair.path), str(tmp_path / "small.pt"))
    kind = STAND_INS[request.node.callspec.params["pair"]]
    small = load_verifier(tmp_path / "small.pt", kind.task())
    exported, ours = (
        without_copies(model.half().state_dict()) for model in (small, copy.deepcopy(pair.ours))
    )
    assert exported.keys() == ours.keys()
    assert all(torch.equal(tensor, ours[name]) for name, tensor in exported.items())
