"""fairseq's search over our engines: its hypotheses are those over fairseq's own models."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from conftest import examples, make_batch, make_dictionary, make_task, make_verifier, vary_output
from fairseq import search
from fairseq.models.transformer import TransformerModelBase
from fairseq.sequence_generator import EnsembleModel, SequenceGenerator
from fairseq.token_generation_constraints import pack_constraints
from helpers.decoding.whole_cache import WHOLE_CACHE
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.decoding.fairseq_search import EngineModel, rows_of_children
from specdec_plugins.decoding.step_result import Hypothesis
from specdec_plugins.engines.cuda_graphs import CudaGraphsEngine
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.engine import Engine
from specdec_plugins.host.fairseq_types import NetInput, Sample

pytestmark = pytest.mark.usefixtures("exact_softmax")

DICTIONARY = make_dictionary()
TASK = make_task(DICTIONARY)
PAD, EOS = DICTIONARY.pad(), DICTIONARY.eos()
EAGER = EagerEngine("float64")

SEARCHES: dict[str, tuple[dict[str, object], Callable[[], search.Search] | None]] = {
    "beam": ({"beam_size": 5}, None),
    "greedy": ({"beam_size": 1}, None),
    "wide, lenpen": ({"beam_size": 10, "len_penalty": 0.6}, None),
    "unnormalised": ({"beam_size": 4, "normalize_scores": False}, None),
    "no repeats": ({"beam_size": 5, "no_repeat_ngram_size": 2}, None),
    "lengths": ({"beam_size": 5, "min_len": 4, "unk_penalty": 2.0, "temperature": 1.3}, None),
    "groups": ({"beam_size": 6}, lambda: search.DiverseBeamSearch(DICTIONARY, 3, 0.5)),
    "siblings": ({"beam_size": 5}, lambda: search.DiverseSiblingsSearch(DICTIONARY, 0.5)),
    "of a length": (
        {"beam_size": 5},
        lambda: search.LengthConstrainedBeamSearch(DICTIONARY, 0.2, 1, 0.8, 2),
    ),
    "ordered": (
        {"beam_size": 6},
        lambda: search.LexicallyConstrainedBeamSearch(DICTIONARY, "ordered"),
    ),
    "unordered": (
        {"beam_size": 6},
        lambda: search.LexicallyConstrainedBeamSearch(DICTIONARY, "unordered"),
    ),
    "top-k": ({"beam_size": 3}, lambda: search.Sampling(DICTIONARY, 5, -1.0)),
    "top-p": ({"beam_size": 3}, lambda: search.Sampling(DICTIONARY, -1, 0.8)),
}


@cache
def verifier(seed: int) -> TransformerModelBase:
    return vary_output(make_verifier(TASK, seed=seed))


@cache
def engine_model(engine: Engine, *seeds: int) -> EngineModel:
    return EngineModel([verifier(seed) for seed in seeds], PAD, engine)


def searched(
    model: EnsembleModel, name: str, sample: Sample, length: int, **asked: object
) -> list[list[Hypothesis]]:
    """The hypotheses of a search; draws begin with the same seed."""
    options, strategy = SEARCHES[name]
    torch.manual_seed(3)
    generator = SequenceGenerator(
        model, DICTIONARY, max_len_b=length, search_strategy=strategy and strategy(), **options
    )
    if "ordered" in name:
        words = [[torch.tensor([7, 8]), torch.tensor([11])] for _ in sample["id"]]
        asked["constraints"] = pack_constraints(words)
    return generator.generate(None, sample, **asked)


def check_equal(ours: list[list[Hypothesis]], stock: list[list[Hypothesis]]) -> None:
    assert len(ours) == len(stock)
    for mine, other in zip(ours, stock, strict=True):
        assert [x["tokens"].tolist() for x in mine] == [x["tokens"].tolist() for x in other]
        for x, y in zip(mine, other, strict=True):
            torch.testing.assert_close(x["score"], y["score"], rtol=1e-5, atol=1e-5)
            scores = x["positional_scores"], y["positional_scores"]
            torch.testing.assert_close(*scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SEARCHES)
@examples(40)
@given(
    lengths=st.lists(st.integers(2, 9), min_size=1, max_size=5),
    length=st.integers(4, 9),
    prefix=st.sampled_from([[], [[6, 9]], [[6, 9], [7, PAD]]]),
    engine=st.sampled_from([EAGER, WHOLE_CACHE]),
    seed=st.integers(0, 99),
)
def test_hypotheses_are_those_of_fairseqs_models(
    name: str,
    lengths: list[int],
    length: int,
    prefix: list[list[int]],
    engine: Engine,
    seed: int,
) -> None:
    """Of sentences that end at different steps, some with a prefix, some with a shorter one."""
    sample, asked = make_batch(lengths, seed=seed), {}
    if prefix and "ordered" not in name:
        rows = [prefix[row % len(prefix)] for row in range(len(lengths))]
        asked["prefix_tokens"] = torch.tensor(rows)
    ours = searched(engine_model(engine, 1), name, sample, length, **asked)
    check_equal(ours, searched(EnsembleModel([verifier(1)]), name, sample, length, **asked))


def test_an_ensemble() -> None:
    """Of verifiers, whose probabilities are averaged."""
    sample = make_batch([5, 8, 3])
    ours = searched(engine_model(EAGER, 1, 2), "beam", sample, 12)
    stock = searched(EnsembleModel([verifier(1), verifier(2)]), "beam", sample, 12)
    check_equal(ours, stock)
    alone = searched(engine_model(EAGER, 1), "beam", sample, 12)
    assert [row[0]["tokens"].tolist() for row in ours] != [
        row[0]["tokens"].tolist() for row in alone
    ]


def test_targets_that_begin_with_another_token() -> None:
    sample = make_batch([5, 8])
    ours = searched(engine_model(EAGER, 1), "beam", sample, 12, bos_token=9)
    stock = searched(EnsembleModel([verifier(1)]), "beam", sample, 12, bos_token=9)
    check_equal(ours, stock)


def test_a_prefix_that_ends_the_sentence() -> None:
    sample, asked = make_batch([5, 4]), {"prefix_tokens": torch.tensor([[6, EOS], [7, 8]])}
    ours = searched(engine_model(EAGER, 1), "beam", sample, 9, **asked)
    check_equal(ours, searched(EnsembleModel([verifier(1)]), "beam", sample, 9, **asked))


@pytest.mark.parametrize("stock", [True, False])
def test_a_prefix_after_which_nothing_can_win(stock: bool) -> None:
    """fairseq asks on, and gives up at the maximum length."""
    model = EnsembleModel([verifier(1)]) if stock else engine_model(EAGER, 1)
    with pytest.raises(AssertionError, match="9 < 9"):
        searched(model, "beam", make_batch([5]), 9, prefix_tokens=torch.tensor([[EOS]]))


class Counting(EngineModel):
    """Notes the rows that each step runs."""

    def forward_encoder(self, net_input: NetInput) -> Any:
        self.counts: list[tuple[int, int]] = []
        return super().forward_encoder(net_input)

    def forward_decoder(self, tokens: Any, *rest: Any, **more: Any) -> Any:
        answer = super().forward_decoder(tokens, *rest, **more)
        self.counts.append((len(tokens), self._verifiers[0].cache.rows))
        return answer


def test_rows_that_cannot_win_are_not_run() -> None:
    """The first step runs a row a sentence, and so do the steps of a prefix."""
    model = Counting([verifier(1)], PAD, EAGER)
    sample = make_batch([5, 4, 7])
    searched(model, "beam", sample, 10, prefix_tokens=torch.tensor([[6, 9, 12]] * 3))
    assert model.counts[:4] == [(15, 3)] * 4
    assert all(asked == run for asked, run in model.counts[4:])


def test_rows_of_finished_sentences_are_dropped() -> None:
    model = Counting([verifier(1)], PAD, EAGER)
    sample = make_batch([3, 9, 4, 6])
    searched(model, "beam", sample, 20)
    asked, run = zip(*model.counts[1:])
    assert asked == run
    assert run[0] == 20 > run[-1]
    assert sorted(run, reverse=True) == list(run)


@given(st.lists(st.integers(0, 7), min_size=1, max_size=8).map(sorted))
def test_places(parents: list[int]) -> None:
    """Every child has its own, and the first child of each row that goes on has its parent's."""
    parents = [min(parent, len(parents) - 1) for parent in parents]
    places = rows_of_children(parents)
    assert sorted(places) == list(range(len(parents)))
    moved = sum(place != parent for place, parent in zip(places, parents))
    assert moved == len(parents) - len(set(parents))


def test_places_by_example() -> None:
    assert rows_of_children([0, 0, 1, 3]) == [0, 2, 1, 3]


def test_an_engine_that_records_says_once_that_it_does_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = CudaGraphsEngine("float64", record=lambda part: part)
    model = EngineModel([verifier(1)], PAD, engine)
    sample = make_batch([5, 4])
    for _ in range(2):
        ours = searched(model, "beam", sample, 9)
    check_equal(ours, searched(EnsembleModel([verifier(1)]), "beam", sample, 9))
    assert [record.message for record in caplog.records] == [
        "cuda-graphs: beams change the rows of a batch at every step; the eager engine runs the "
        "steps"
    ]
