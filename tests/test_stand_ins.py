"""Verifiers as people have them: each translates as stock fairseq does with the same file."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_batch, make_task
from helpers.decoding.strict import assert_beam1, beam1, one_row
from helpers.models.drafters import make_causal
from helpers.models.stand_ins import STAND_INS, StandIn, begun, read_by_fairseq

from specdec_plugins.checkpoints.export import export_checkpoint
from specdec_plugins.checkpoints.pair import load_verifier
from specdec_plugins.decoding.build import build_generator
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.engines.choice import choose_engines
from specdec_plugins.engines.engine import Engines
from specdec_plugins.files.output import JsonObject
from specdec_plugins.host.checkpoints import without_copies
from specdec_plugins.host.fairseq_types import Sample

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

    def batch(self, lengths: list[int]) -> tuple[Sample, JsonObject]:
        """A batch, and what its targets begin with."""
        return begun(self.stock_task, make_batch(lengths, self.words, seed=4))

    def generators(self, engines: Engines | None = None) -> list[Any]:
        """AR, and strict acceptance of drafts."""
        options: Any = {"block_size": 4, "limits": LIMITS, "engines": engines}
        drafters = None, self.drafter
        return [build_generator(self.ours, x, self.target, **options) for x in drafters]


@pytest.fixture(scope="module", params=STAND_INS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(STAND_INS[request.param], tmp_path_factory.mktemp("stand_in"))


@pytest.mark.usefixtures("exact_softmax")
@pytest.mark.parametrize("lengths", [[8], [9, 4, 6]])
def test_output_is_stock_fairseqs(pair: Pair, lengths: list[int]) -> None:
    batch, begin = pair.batch(lengths)
    for generator in pair.generators():
        outputs = [hypothesis for (hypothesis,) in generator.generate([], batch, **begin)]
        assert_beam1(outputs, batch, pair.stock, LIMITS, **begin)


def test_of_words_with_equal_scores_any_may_be_taken(tmp_path: Path) -> None:
    """Stock takes another than we do; but for that the outputs are the same."""
    path = StandIn({"share_all_embeddings": True}).save(tmp_path / "verifier.pt")
    state, twins = torch.load(path, weights_only=False), {5: 6, 7: 8, 9: 10, 11: 12}
    for name in ("encoder.embed_tokens", "decoder.embed_tokens", "decoder.output_projection"):
        for word, twin in twins.items():
            state["model"][f"{name}.weight"][twin] = state["model"][f"{name}.weight"][word]
    torch.save(state, path)
    task = StandIn().task()
    model, batch = load_verifier(path, task).double(), make_batch([9] * 8, 24, seed=4)
    ours = build_generator(model, None, task.target_dictionary, limits=LIMITS)
    outputs = [best[0]["tokens"].tolist() for best in ours.generate([], batch)]
    expected = [best["tokens"].tolist() for best in beam1(model, batch, LIMITS)]
    assert len({token for output in expected for token in output} & {*twins, *twins.values()}) > 1
    assert outputs != expected
    assert [[twins.get(t, t) for t in o] for o in outputs] == [
        [twins.get(t, t) for t in o] for o in expected
    ]


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


@pytest.mark.slow
def test_float32_by_onnxruntime_is_stock_fairseqs_but_for_near_ties(pair: Pair) -> None:
    pytest.importorskip("onnxruntime", reason="the extra [int8] is not installed")
    engines = choose_engines("onnxruntime", "float32", "float32", "cpu")
    pair.ours.float(), pair.drafter.float()
    batch, begin = pair.batch([9, 4, 6])
    expected = [best["tokens"].tolist() for best in beam1(pair.stock, batch, LIMITS, **begin)]
    for generator in pair.generators(engines):
        for row, (hypothesis,) in enumerate(generator.generate([], batch, **begin)):
            output = hypothesis["tokens"].tolist()
            if output != expected[row]:
                first = begin.get("bos_token", pair.target.eos())
                outputs = [first, *output], [first, *expected[row]]
                assert gap_at_the_difference(pair, batch, row, *outputs) < 1e-3


def gap_at_the_difference(
    pair: Pair, batch: Sample, row: int, output: list[int], expected: list[int]
) -> float:
    """Return the gap between the logits of the first two tokens that differ, in float64."""
    at = next(i for i, (a, b) in enumerate(zip(output, expected)) if a != b)
    net_input = one_row(batch, row)["net_input"]
    previous = torch.tensor([expected[:at]])
    logits = pair.stock(**net_input, prev_output_tokens=previous)[0][0, -1]
    return float((logits[expected[at]] - logits[output[at]]).abs())
