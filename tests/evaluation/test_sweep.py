"""Which runs are still to be made, in which order, and what decides them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sweeps import make_run

from specdec_plugins.decoding.acceptance import RelaxedRule, SamplingRule
from specdec_plugins.evaluation.sweep import Sweep
from specdec_plugins.evaluation.systems import Choice, list_systems
from specdec_plugins.evaluation.texts import Text
from specdec_plugins.files.input import Line
from specdec_plugins.files.json_object import differences
from specdec_plugins.inference import Settings


@pytest.fixture
def base(tmp_path: Path) -> Settings:
    """Settings whose files are there, if of nothing that could be loaded."""
    for name in ("dict.en.txt", "dict.de.txt", "drafter.pt", "verifier.pt"):
        (tmp_path / name).write_text(name)
    files = {"path": str(tmp_path / "drafter.pt"), "ar_path": str(tmp_path / "verifier.pt")}
    return Settings(data=str(tmp_path), **files)


def make_sweep(
    base: Settings, text: str = "a", controller: str = "constant", **changes: Any
) -> Sweep:
    choice = Choice((controller,), (1,), swept={"stop_threshold": (0.5,)})
    texts = changes.pop("texts", [Text("", [Line(1, text)])])
    return Sweep(list_systems(base, choice, 4), texts, **changes)


def order(sweep: Sweep, runs: Any = ()) -> list[tuple[int, int, str]]:
    return [(one.batch, one.number, s.name) for one in sweep.pending(runs) for s in one.systems]


def test_systems_take_turns(base: Settings) -> None:
    """A round is over before the next begins, and each has an order of its own."""
    sweep = make_sweep(base, batches=(1, 8), repeats=9)
    found = order(sweep)
    names = ("AR", "constant k 1", "drafter")
    expected = [(b, n, name) for b in (1, 8) for n in range(1, 10) for name in names]
    assert [one[:2] for one in found] == [one[:2] for one in expected]
    assert sorted(found) == expected
    orders = {tuple(name for *_, name in found[i : i + 3]) for i in range(0, 27, 3)}
    assert len(orders) > 2
    assert {first for first, *_ in orders} == set(names)
    assert order(sweep) == found


def test_what_is_there_is_left_out(base: Settings) -> None:
    sweep = make_sweep(base, repeats=2)
    everything = order(sweep)
    done = [make_run(name, round=number) for _, number, name in everything[:4]]
    assert order(sweep, done) == everything[4:]
    # That of another batch size or device does not count.
    others = [replace(run, batch=2) for run in done] + [replace(r, device="cuda") for r in done]
    assert order(sweep, others) == everything


def test_what_decides_a_run_is_described(base: Settings) -> None:
    def changed(sweep: Sweep) -> list[str]:
        return list(differences(make_sweep(base).describe(), sweep.describe()))

    assert changed(make_sweep(base)) == []
    assert changed(make_sweep(base, "b")) == ["texts..sha256"]
    assert changed(make_sweep(base, warmup=3)) == ["warmup"]
    relaxed = replace(base, rule=RelaxedRule(3, 1.0))
    rule = [f"settings.rule.{part}" for part in ("beta", "tau")]
    assert changed(make_sweep(relaxed)) == rule
    assert changed(make_sweep(replace(base, precision="float64"))) == ["settings.precision"]
    # These are told by the runs, and may be added to what is there.
    assert changed(make_sweep(base, batches=(1, 2), repeats=9)) == []
    sweep = make_sweep(base)
    assert changed(replace(sweep, systems=sweep.systems[:2])) == ["systems.constant k 1"]


def test_of_sampling_there_is_a_round_for_each_seed(base: Settings) -> None:
    """And more seeds are added to what is there."""
    base = replace(base, rule=SamplingRule())
    sweep = make_sweep(base, seeds=(5, 3))
    assert [one.number for one in sweep.pending(())] == [5, 3]
    assert {name for *_, name in order(sweep)} == {"AR", "constant k 1"}
    more = make_sweep(base, seeds=(5, 3, 7))
    assert list(differences(sweep.describe(), more.describe())) == []
    done = [make_run(name, round=number) for _, number, name in order(sweep)]
    assert {number for _, number, _ in order(more, done)} == {7}


def test_texts_come_one_after_another(base: Settings) -> None:
    """Each with rounds of its own; those of another one do not count."""
    texts = [Text(name, [Line(1, name)]) for name in ("near", "far")]
    sweep = make_sweep(base, texts=texts, repeats=2)
    found = [(one.text.name, one.number) for one in sweep.pending(())]
    assert found == [("near", 1), ("near", 2), ("far", 1), ("far", 2)]
    done = [make_run(system.name, text="far") for system in sweep.systems]
    assert ("far", 1) not in [(one.text.name, one.number) for one in sweep.pending(done)]
    alone = make_sweep(base, texts=texts[:1]).describe()
    assert list(differences(alone, sweep.describe())) == ["texts.far"]


def test_a_trace_is_another_sweep(base: Settings) -> None:
    found = differences(make_sweep(base).describe(), make_sweep(base, trace=True).describe())
    assert list(found) == ["trace"]


def test_other_files_and_threads_are_another_sweep(
    base: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def describe(controller: str) -> dict[str, Any]:
        return make_sweep(base, controller=controller).describe()

    head = Path(base.data) / "acceptance_head.pt"
    head.write_text("a head")
    plain, with_head = describe("constant"), describe("acceptance-head")
    head.write_text("another")
    # Who asks no head does not mind.
    assert describe("constant") == plain
    assert list(differences(with_head, describe("acceptance-head"))) == ["models.acceptance_head"]
    Path(str(base.path)).write_text("another")
    assert list(differences(plain, describe("constant"))) == ["models.drafter"]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    assert list(differences(plain, describe("constant"))) == ["threads", "models.drafter"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"repeats": 0}, "--repeats 0: must be at least 1"),
        ({"batches": (4, 0)}, "--batch 0: must be at least 1"),
        ({"warmup": -1}, "--warmup -1"),
        ({"seeds": (1, 2)}, "--seed 1 2: several are for --sampling"),
    ],
)
def test_numbers_that_cannot_be(base: Settings, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_sweep(base, **changes)


def test_a_precision_that_a_device_has_not(base: Settings) -> None:
    with pytest.raises(ValueError, match="--precision float16: needs a GPU"):
        make_sweep(replace(base, device="cuda", precision="float16"), devices=("cuda", "cpu"))
