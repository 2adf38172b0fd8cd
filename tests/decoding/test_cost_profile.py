"""What steps cost: measured once, kept, and not believed of another machine."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_batch, make_dictionary, make_task, make_verifier
from drafters import make_causal

from specdec_plugins.decoding import cost_profile
from specdec_plugins.decoding.acceptance import AcceptanceRule
from specdec_plugins.decoding.controllers import ControllerOptions
from specdec_plugins.decoding.controllers.options import build_controller
from specdec_plugins.decoding.cost_profile import CostProfile, default_path, describe, tabulate
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.probabilities import Sampling
from specdec_plugins.decoding.rehearsal import decoded
from specdec_plugins.decoding.tree_source import TreeSource

K = 4
CPU = torch.device("cpu")


def make_generator(path: Path | None = None, max_len_b: int = 12) -> SpeculativeGenerator:
    task = make_task(block_size=K)
    task.verifier = make_verifier()
    return SpeculativeGenerator(
        task.verifier,
        make_causal(task, verifier_features=True),
        make_dictionary(),
        limits=GenerationLimits(max_len_b=max_len_b),
        controller=ControllerOptions("cost-aware", cost_profile=path and str(path)),
    )


def sample(rows: int) -> dict[str, Any]:
    return make_batch([3 + row for row in range(rows)])


def test_measured_once_and_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "costs.json"
    generator = make_generator(path)
    before = generator.statistics
    costs = CostProfile(str(path)).costs(generator, sample(3), K)
    assert generator.statistics is before
    assert before.steps == before.drafted_tokens == 0
    for table in (costs.draft, costs.verify):
        assert table.shape == (4, K + 1)
        assert (table.diff(dim=1) >= 0).all()
    assert not costs.draft[:, 0].any()
    assert (costs.draft[:, 1:] > 0).all()
    assert (costs.verify > 0).all()
    stored = json.loads(path.read_text())
    assert stored["key"] == describe(generator, K)
    assert set(stored["costs"]) == {"1", "2", "4"}
    assert list(path.parent.iterdir()) == [path]

    def refuse(*args: Any) -> Any:
        raise AssertionError("measured again")

    monkeypatch.setattr(CostProfile, "_measure", refuse)
    again = CostProfile(str(path)).costs(generator, sample(3), K)
    torch.testing.assert_close(again.verify, costs.verify)
    with pytest.raises(AssertionError, match="measured again"):
        CostProfile(str(path)).costs(generator, sample(5), K)


def test_a_larger_batch_adds_its_sizes(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    generator = make_generator()
    CostProfile(str(path)).costs(generator, sample(1), K)
    first = json.loads(path.read_text())["costs"]
    CostProfile(str(path)).costs(generator, sample(2), K)
    second = json.loads(path.read_text())["costs"]
    assert set(first) == {"1"}
    assert set(second) == {"1", "2"}
    assert first["1"] == second["1"]


@pytest.mark.parametrize("max_len_b", [1, 2, 30])
def test_whatever_the_limits(tmp_path: Path, max_len_b: int) -> None:
    generator = make_generator(max_len_b=max_len_b)
    assert (CostProfile(str(tmp_path / "costs")).costs(generator, sample(2), K).verify > 0).all()


def test_limits_that_only_real_sentences_meet(tmp_path: Path) -> None:
    generator = make_generator()
    generator.limits = limits = GenerationLimits(max_len_a=2, max_len_b=0, min_len=10)
    batch = make_batch([6, 7])
    assert (CostProfile(str(tmp_path / "costs")).costs(generator, batch, K).verify > 0).all()
    assert generator.limits is limits


def test_another_machines_is_measured_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "costs.json"
    generator = make_generator()
    costs = {"1": {"draft": [[0, 0], [4, 1]], "verify": [[0, 9e9], [4, 9e9]]}}
    key = {**describe(generator, K), "device": "a quantum computer", "threads": 99}
    path.write_text(json.dumps({"key": key, "costs": costs}))
    with caplog.at_level(logging.WARNING):
        found = CostProfile(str(path)).costs(generator, sample(1), K)
    assert f"{path}: was measured for another device and threads; measuring anew" in caplog.text
    assert (found.verify < 1e9).all()
    assert json.loads(path.read_text())["key"] == describe(generator, K)


GARBAGE = [
    "",
    "{",
    "[]",
    "{}",
    '{"key": {}}',
    '{"key": [], "costs": {}}',
    '{"key": {}, "costs": 3}',
]
GARBAGE += ['{"key": {}, "costs": {"1": {"draft": [[0, 1]]}}}']


@pytest.mark.parametrize("text", GARBAGE)
def test_a_users_file_of_another_kind_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "thesis.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"--cost-profile .*thesis\.txt: is no cost profile"):
        CostProfile(str(path)).costs(make_generator(), sample(1), K)
    assert path.read_text() == text


@pytest.mark.parametrize("text", GARBAGE)
def test_a_broken_cache_is_measured_anew(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    generator = make_generator()
    path = default_path(describe(generator, K))
    assert path.parent == tmp_path / "specdec"
    path.parent.mkdir()
    path.write_text(text)
    with caplog.at_level(logging.WARNING):
        CostProfile().costs(generator, sample(1), K)
    assert "is no cost profile" in caplog.text
    assert json.loads(path.read_text())["key"] == describe(generator, K)


def test_a_place_that_cannot_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    generator = make_generator()
    with pytest.raises(ValueError, match=r"--cost-profile .*/costs: cannot be written"):
        CostProfile(str(blocker / "costs")).costs(generator, sample(1), K)
    monkeypatch.setattr(cost_profile, "default_path", lambda key: blocker / "costs")
    with caplog.at_level(logging.WARNING):
        assert CostProfile().costs(generator, sample(1), K).verify.shape == (2, K + 1)
    assert "cannot be written" in caplog.text


def test_keys_tell_models_apart() -> None:
    generator, other = make_generator(), make_generator()
    assert describe(generator, K) == describe(other, K)
    other.model = make_verifier(decoder_layers=1)
    assert describe(generator, K) != describe(other, K)
    assert describe(generator, K) != describe(generator, K - 1)
    generator.model.float()
    assert describe(generator, K)["dtype"] == "torch.float32"
    assert len({default_path(describe(g, k)) for g in (generator, other) for k in (K, 1)}) == 4


def test_between_what_was_measured() -> None:
    measured = {
        1: {"draft": [[0, 0.0], [2, 2.0]], "verify": [[0, 1.0], [2, 3.0], [4, 4.0]]},
        4: {"draft": [[0, 0.0], [2, 8.0]], "verify": [[0, 4.0], [2, 6.0], [4, 7.0]]},
    }
    costs = tabulate(measured, 4, 4, CPU)
    assert costs.draft[1].tolist() == [0, 1, 2, 2, 2]
    assert costs.verify[1].tolist() == [1, 2, 3, 3.5, 4]
    assert costs.verify[4].tolist() == [4, 5, 6, 6.5, 7]
    assert costs.verify[2].tolist() == [2, 3, 4, 4.5, 5]
    assert costs.verify[0].tolist() == costs.verify[1].tolist()


def test_what_was_disturbed_costs_no_more_than_more() -> None:
    measured = {1: {"draft": [[0, 0.0], [1, 9.0], [2, 3.0]], "verify": [[0, 5.0], [2, 4.0]]}}
    costs = tabulate(measured, 1, 2, CPU)
    assert costs.draft[1].tolist() == [0, 3, 3]
    assert costs.verify[1].tolist() == [4, 4, 4]


def test_steps_are_adjusted_to_whole_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """To what decoding takes for each row's step, the rows that finish early included."""
    monkeypatch.setattr(
        CostProfile,
        "_measure",
        lambda *_: {"draft": [[0, 0.0], [K, 2.0]], "verify": [[0, 1.0], [K, 2.0]]},
    )
    asked: list[tuple[int, int]] = []

    def decoded(generator: Any, sample: Any, slots: int) -> tuple[float, list[float]]:
        rows = len(sample["net_input"]["src_tokens"])
        asked.append((rows, slots))
        return (60.0 if slots else 10.0), [rows, rows, rows, rows / 2, rows / 2]

    monkeypatch.setattr(cost_profile, "decoded", decoded)
    monkeypatch.setattr(CostProfile, "_save", lambda *_: None)
    monkeypatch.setattr(CostProfile, "_load", lambda *_: {})
    costs = CostProfile().costs(make_generator(), sample(3), K)
    assert set(asked) == {(rows, slots) for rows in (1, 2, 4) for slots in (0, K)}
    # What would have been four whole steps of 1 second took 10; four of 4 seconds took 60.
    assert costs.verify[:, 0].tolist() == [2.5] * 4
    assert costs.draft[:, K].tolist() == [7.5] * 4
    assert costs.verify[:, K].tolist() == [7.5] * 4


def test_a_decode_is_timed_with_its_steps() -> None:
    generator = make_generator()
    before = generator.statistics, generator.controller
    seconds, steps = decoded(generator, sample(3), 0)
    assert (generator.statistics, generator.controller) == before
    assert 0 < seconds < 60
    assert steps[0] == 3
    assert steps == sorted(steps, reverse=True)
    alone = SpeculativeGenerator(
        generator.model, None, make_dictionary(), limits=GenerationLimits(max_len_b=12)
    )
    lengths = [len(h[0]["tokens"]) for h in alone.generate([], sample(3))]
    assert len(steps) == max(lengths)
    assert sum(steps) == sum(lengths)
    assert sum(decoded(generator, sample(3), K)[1]) <= sum(lengths)


def test_from_options_to_output(tmp_path: Path) -> None:
    """Measuring leaves no trace in the output."""
    batch = make_batch([5, 3, 9])
    generator = make_generator(tmp_path / "costs.json")
    found = generator.generate([], batch)
    constant = SpeculativeGenerator(
        generator.model, None, make_dictionary(), limits=GenerationLimits(max_len_b=12)
    ).generate([], batch)
    for (ours,), (theirs,) in zip(found, constant):
        assert ours["tokens"].tolist() == theirs["tokens"].tolist()
    assert generator.statistics.sentences == 3


def test_sampling_has_costs_of_its_own_and_measuring_draws_nothing(tmp_path: Path) -> None:
    generator = make_generator()
    strict = describe(generator, K)
    generator.rule = AcceptanceRule(sampling=Sampling(topp=0.9))
    assert describe(generator, K) != strict
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    CostProfile(str(tmp_path / "costs.json")).costs(generator, sample(1), K)
    assert torch.equal(torch.rand(3), expected)


def test_trees_have_costs_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chains, trees = make_generator(), make_generator()
    options = ControllerOptions("cost-aware", survival="averages")
    chains.controller = build_controller(options, K)
    assert describe(trees, 12)["tree depth"] == K
    assert describe(chains, 12)["tree depth"] == 0
    grown: list[int] = []
    grow = TreeSource.grow

    def noting(self: TreeSource, nodes: int) -> Any:
        grown.append(nodes)
        return grow(self, nodes)

    monkeypatch.setattr(TreeSource, "grow", noting)
    costs = CostProfile(str(tmp_path / "costs.json")).costs(trees, sample(1), 12)
    assert costs.verify.shape == (2, 13)
    assert set(grown) == {1, 6, 12}
    grown.clear()
    decoded(trees, sample(2), 7)
    assert set(grown) == {7}
    grown.clear()
    decoded(trees, sample(2), 0)
    assert not grown
