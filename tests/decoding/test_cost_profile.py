"""What steps cost: measured once, kept, and not believed of another machine."""

from __future__ import annotations

import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_batch, make_dictionary, make_task, make_verifier
from controlled import HEAD
from drafters import make_causal
from padded import PADDED

from specdec_plugins.decoding import cost_profile
from specdec_plugins.decoding.acceptance import SamplingRule
from specdec_plugins.decoding.acceptance.sampling import Sampling
from specdec_plugins.decoding.build import build_generator
from specdec_plugins.decoding.controllers import ControllerOptions, Needs
from specdec_plugins.decoding.controllers.costs import Points, StepCosts
from specdec_plugins.decoding.cost_profile import CostProfile, default_path, describe, write_costs
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.engine import Engines
from specdec_plugins.files.lock import OutputLock
from specdec_plugins.files.paths import lock_path

K = 4
CHAIN = Needs(K)


@pytest.fixture(autouse=True)
def _few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CostProfile, "MOST", 3)


def make_generator(
    limits: GenerationLimits | None = None,
    rule: Any = None,
    engine: EagerEngine | None = None,
    k: int = K,
    **options: Any,
) -> SpeculativeGenerator:
    task = make_task(block_size=k)
    task.verifier = make_verifier()
    return build_generator(
        task.verifier,
        make_causal(task, verifier_features=True),
        make_dictionary(),
        rule=rule,
        limits=limits or GenerationLimits(max_len_b=12),
        options=ControllerOptions("acceptance-head", auto_stop_threshold=True, **options),
        head=HEAD,
        engines=engine and Engines.both(engine),
    )


def sample(rows: int) -> dict[str, Any]:
    return make_batch([3 + row for row in range(rows)])


def measure(
    path: Path | None, generator: SpeculativeGenerator, rows: int = 1, needs: Needs = CHAIN
) -> StepCosts:
    return CostProfile(path and str(path)).costs(generator, sample(rows), needs)


def refuse(*args: Any) -> Any:
    raise AssertionError("measured again")


def test_measured_once_and_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "costs.json"
    generator = make_generator()
    costs = measure(path, generator, 3)
    assert generator.statistics.report() == DecodingStatistics().report()
    for table in (costs.draft, costs.verify):
        assert table.shape == (4, K + 1)
        assert (np.diff(table, axis=1) >= 0).all()
    assert not costs.draft[:, 0].any()
    assert (costs.draft[:, 1:] > 0).all()
    assert (costs.verify > 0).all()
    stored = json.loads(path.read_text())
    assert stored["key"] == describe(generator, CHAIN)
    assert set(stored["costs"]) == {"1", "2", "4"}
    assert [slots for slots, _ in stored["costs"]["1"]["verify"]] == [0, 1, 2, 4]
    assert list(path.parent.iterdir()) == [path]
    with monkeypatch.context() as patch:
        patch.setattr(SpeculativeGenerator, "decode", refuse)
        assert (measure(path, generator, 3).verify == costs.verify).all()
        with pytest.raises(AssertionError, match="measured again"):
            measure(path, generator, 5)
    # A larger batch adds its sizes.
    measure(path, generator, 5)
    grown = json.loads(path.read_text())["costs"]
    assert set(grown) == {"1", "2", "4", "8"}
    assert stored["costs"].items() <= grown.items()


@pytest.mark.parametrize(
    "limits",
    [GenerationLimits(max_len_b=1), GenerationLimits(max_len_a=2, max_len_b=0, min_len=5)],
)
def test_whatever_the_limits(tmp_path: Path, limits: GenerationLimits) -> None:
    """Also those that only real sentences meet."""
    assert (measure(tmp_path / "costs", make_generator(limits), 2).verify > 0).all()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, Needs]]:
    """Decoding takes no time, and says that it does; of whom it was asked for what."""
    asked: list[tuple[int, Needs]] = []

    def decode(
        self: Any, sample: Any, controller: Any, statistics: DecodingStatistics, *more: Any
    ) -> None:
        rows = len(sample["net_input"]["src_tokens"])
        (slots,) = set(controller.start(rows))
        asked.append((rows, controller.needs))
        # 4 rows that end after 5, 5, 4 and 2 steps: 4 a row.
        statistics.steps = 4 * rows
        seconds = {"encode": 7.0, "draft": 2.0 * slots, "verify": 10.0}
        monkeypatch.setattr(statistics.stopwatch, "seconds", lambda: seconds)
        # 5 of it is none of the phases'.
        statistics.total_seconds = sum(seconds.values()) + 5.0 + slots

    monkeypatch.setattr(SpeculativeGenerator, "decode", decode)
    return asked


def test_a_step_has_its_part_of_the_whole_decode(
    tmp_path: Path, asked: list[tuple[int, Needs]]
) -> None:
    """Of what decoding takes but the encoders, for as many steps as rows take on average."""
    needs = Needs(K, confidences=True)
    costs = measure(tmp_path / "costs", make_generator(), 3, needs)
    lengths = {(rows, Needs(n, confidences=True)) for rows in (1, 2, 4) for n in (0, 1, 2, 4)}
    assert set(asked) == lengths
    assert costs.draft.tolist() == [[0.5 * n for n in range(K + 1)]] * 4
    assert costs.verify.tolist() == [[(15 + n) / 4 for n in range(K + 1)]] * 4


def test_what_a_gpu_takes_is_told_by_the_one_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts are taken from the whole: each has what was launched in it, which ends when somebody
    waits for it."""
    gpu, now, launched = torch.device("cuda"), [0.0], [0.0]

    def wait(device: torch.device) -> None:
        now[0], launched[0] = now[0] + launched[0], 0.0

    def decode(
        self: Any, sample: Any, controller: Any, statistics: DecodingStatistics, *more: Any
    ) -> None:
        begin = now[0]
        for phase, seconds in (("encode", 7.0), ("draft", 3.0), ("verify", 5.0)):
            with statistics.stopwatch(phase, gpu):
                launched[0] += seconds
        statistics.steps = 2 * len(sample["net_input"]["src_tokens"])
        statistics.total_seconds = now[0] - begin

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(torch.cuda, "synchronize", wait)
    monkeypatch.setattr(SpeculativeGenerator, "decode", decode)
    costs = measure(tmp_path / "costs", make_generator(), 1)
    assert set(costs.draft[:, 1:].flat) == {1.5}
    assert set(costs.verify.flat) == {2.5}


def test_the_controller_is_told_before_a_batch_that_is_larger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = make_generator(cost_profile=str(tmp_path / "costs.json"))
    controller: Any = generator.controller
    told: list[StepCosts] = []
    tell = controller.learn_costs
    told_too = lambda costs: (told.append(costs), tell(costs))  # noqa: E731
    monkeypatch.setattr(controller, "learn_costs", told_too)
    for rows in (2, 1, 2, 3):
        generator.generate([], sample(rows))
    assert [len(costs.draft) for costs in told] == [3, 4]
    assert told[0].verify.shape == (3, K + 1)
    assert generator.statistics.sentences == 8


def test_measuring_leaves_no_trace(tmp_path: Path) -> None:
    """In the output, and in what is drawn later."""
    batch = make_batch([5, 3, 9])
    generator = make_generator(cost_profile=str(tmp_path / "costs.json"))
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    found = generator.generate([], batch)
    assert torch.equal(torch.rand(3), expected)
    limits = GenerationLimits(max_len_b=12)
    plain = build_generator(generator.model, None, make_dictionary(), limits=limits)
    for (ours,), (theirs,) in zip(found, plain.generate([], batch)):
        assert ours["tokens"].tolist() == theirs["tokens"].tolist()
    assert generator.statistics.sentences == 3
    sampler = make_generator(rule=SamplingRule())
    torch.manual_seed(1)
    measure(tmp_path / "sampled", sampler)
    assert torch.equal(torch.rand(3), expected)


def test_two_processes_add_to_one_file(tmp_path: Path) -> None:
    path, key = tmp_path / "costs.json", {"a": 1}
    points: dict[str, Points] = {
        size: {part: [[0, float(size)]] for part in ("draft", "verify")} for size in "124"
    }
    with ThreadPoolExecutor() as pool:
        with OutputLock(path, lock_path(path)):
            write_costs(path, key, {"1": points["1"]})
            other = pool.submit(CostProfile(str(path))._keep, path, key, {"2": points["2"]})
            with pytest.raises(FutureTimeout):
                other.result(timeout=0.2)
            write_costs(path, key, {"1": points["1"], "4": points["4"]})
        other.result(timeout=60)
    assert json.loads(path.read_text())["costs"] == points
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_padded_is_measured_as_such(tmp_path: Path) -> None:
    """Of steps of 5, 9 and 17 slots, one of them the last token's, each is measured full."""
    path, k = tmp_path / "costs.json", 12
    costs = measure(path, make_generator(engine=PADDED, k=k), needs=Needs(k))
    (stored,) = json.loads(path.read_text())["costs"].values()
    assert [slots for slots, _ in stored["verify"]] == [0, 1, 4, 6, 8, 12]
    parts = costs.verify[1, 1:5], costs.verify[1, 5:9], costs.verify[1, 9:]
    assert all(len(set(part)) == 1 for part in parts)
    one, two, three = (part[0] for part in parts)
    assert one <= two <= three


def test_another_machines_is_measured_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "costs.json"
    generator = make_generator()
    costs = {"1": {"draft": [[0, 0], [4, 1]], "verify": [[0, 9e9], [4, 9e9]]}}
    key = {**describe(generator, CHAIN), "device": "a quantum computer", "threads": 99}
    path.write_text(json.dumps({"key": key, "costs": costs}))
    with caplog.at_level(logging.WARNING):
        found = measure(path, generator)
    message = f"{path}: was measured for another device and threads; measuring anew"
    assert caplog.text.count(message) == 1
    assert (found.verify < 1e9).all()
    assert json.loads(path.read_text())["key"] == describe(generator, CHAIN)


def test_keys_tell_models_and_drafts_apart() -> None:
    generator, other = make_generator(), make_generator()
    assert describe(generator, CHAIN) == describe(other, CHAIN)
    other.model = make_verifier(decoder_layers=1)
    top, half = (SamplingRule(Sampling(topp=p)) for p in (0.9, 0.5))
    samplers = [make_generator(rule=rule) for rule in (top, half)]
    found = [describe(one, CHAIN) for one in (generator, other, *samplers)]
    found.append(describe(generator, Needs(K - 1)))
    generator.engines = Engines(EagerEngine(), EagerEngine("bfloat16"))
    found.append(describe(generator, CHAIN))
    generator.model.float()
    found.append(describe(generator, CHAIN))
    assert found[-1]["dtype"] == "torch.float32"
    assert len({default_path(key) for key in found}) == len(found)


def points(draft: Any, verify: Any) -> str:
    return json.dumps({"key": {}, "costs": {"1": {"draft": draft, "verify": verify}}})


GARBAGE = [
    "",
    "{",
    "[]",
    "{}",
    "[" * 99999,
    '{"key": {}}',
    '{"key": [], "costs": {}}',
    '{"key": {}, "costs": 3}',
    '{"key": {}, "costs": {"1": {"draft": [[0, 1]]}}}',
    points([[0, 0]], []),
    points([[0, 0]], [[0, 1, 2]]),
    points([[0, 0]], [[1, 1], [0, 1]]),
    points([[0, 0]], [[0, -1]]),
    points([[0, 0]], [[0, 1e300]]),
]


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("text", GARBAGE)
def test_what_is_no_profile(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A user's file is left alone; one in the cache is measured anew."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    thesis = tmp_path / "thesis.txt"
    thesis.write_text(text)
    generator = make_generator()
    with pytest.raises(ValueError, match=r"--cost-profile .*thesis\.txt: is no cost profile"):
        measure(thesis, generator)
    assert thesis.read_text() == text
    path = default_path(describe(generator, CHAIN))
    assert path.parent == tmp_path / "specdec"
    path.parent.mkdir()
    path.write_text(text)
    with caplog.at_level(logging.WARNING):
        measure(None, generator)
    assert f"{path}: cannot be used (" in caplog.text
    assert json.loads(path.read_text())["key"] == describe(generator, CHAIN)


def test_what_others_can_have_written_is_measured_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Costs decide relaxed output. A file that the user names may be shared."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    generator = make_generator()
    measure(None, generator)
    path = default_path(describe(generator, CHAIN))
    before = path.read_bytes()
    path.chmod(0o666)
    measure(None, generator)
    assert "others may write to it" in caplog.text
    assert path.read_bytes() != before
    path.chmod(0o666)
    monkeypatch.setattr(CostProfile, "_measure", refuse)
    measure(path, generator)


def test_a_place_that_cannot_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    generator = make_generator()
    with pytest.raises(ValueError, match=r"--cost-profile .*/costs: cannot be written"):
        measure(blocker / "costs", generator)
    monkeypatch.setattr(cost_profile, "default_path", lambda key: blocker / "costs")
    with caplog.at_level(logging.WARNING):
        assert measure(None, generator).verify.shape == (2, K + 1)
    assert "cannot be written" in caplog.text
    with pytest.raises(ValueError, match=f"--cost-profile {tmp_path}: is no ordinary file"):
        CostProfile(str(tmp_path))
