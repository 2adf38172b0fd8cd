"""Which runs are still to be made, in which order, and what decides them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from experiments import make_run

from specdec_plugins.decoding.acceptance import RelaxedRule, SamplingRule
from specdec_plugins.evaluation.controllers import Controllers, controlled_systems
from specdec_plugins.evaluation.experiment import Experiment
from specdec_plugins.evaluation.runs import Run
from specdec_plugins.evaluation.texts import Sentences
from specdec_plugins.files.lines import Line
from specdec_plugins.files.output import differences
from specdec_plugins.inference import Settings


@pytest.fixture
def base(tmp_path: Path) -> Settings:
    """Settings whose files are there, if of nothing that could be loaded."""
    for name in ("dict.en.txt", "dict.de.txt", "drafter.pt", "verifier.pt"):
        (tmp_path / name).write_text(name)
    files = {"path": str(tmp_path / "drafter.pt"), "ar_path": str(tmp_path / "verifier.pt")}
    return Settings(data=str(tmp_path), **files)


def make_text(text: str, name: str = "") -> Sentences:
    return Sentences(name, [Line(1, text)], [text.split()], [9], None, codec=None)  # type: ignore[arg-type]


def make_experiment(
    base: Settings, text: str = "a", controller: str = "constant", threads: int = 1, **changes: Any
) -> Experiment:
    choice = Controllers((controller,), (1,), swept={"stop_threshold": (0.5,)})
    texts = changes.pop("texts", [make_text(text)])
    systems = controlled_systems(base, choice, 4, threads)
    return Experiment(systems, texts, base, {"python": "3"}, **changes)


def order(experiment: Experiment, runs: Any = ()) -> list[tuple[int, int, str]]:
    return [
        (one.batch, one.number, s.name) for one in experiment.pending(runs) for s in one.systems
    ]


def made(experiment: Experiment, name: str, number: int, **changes: Any) -> Run:
    """A run of a system by its name, or label."""
    (system,) = (one for one in experiment.systems if name in (one.name, one.label))
    return make_run(system, round=number, **changes)


def test_systems_take_turns(base: Settings) -> None:
    """A round is over before the next begins, and each has an order of its own."""
    experiment = make_experiment(base, batches=(1, 8), rounds=range(1, 10))
    found = order(experiment)
    names = ("AR", "constant k 1", "drafter")
    expected = [(b, n, name) for b in (1, 8) for n in range(1, 10) for name in names]
    assert [one[:2] for one in found] == [one[:2] for one in expected]
    assert sorted(found) == expected
    orders = {tuple(name for *_, name in found[i : i + 3]) for i in range(0, 27, 3)}
    assert len(orders) > 2
    assert {first for first, *_ in orders} == set(names)
    assert order(experiment) == found


def test_what_is_there_is_left_out(base: Settings) -> None:
    experiment = make_experiment(base, rounds=(1, 2))
    everything = order(experiment)
    done = [made(experiment, name, number) for _, number, name in everything[:4]]
    assert order(experiment, done) == everything[4:]
    # That of another batch size or device does not count.
    others = [made(experiment, run.system, 1, batch=2) for run in done]
    others += [made(experiment, run.system, 1, device="cuda") for run in done]
    assert order(experiment, others) == everything


def test_what_decides_a_run_is_described(base: Settings) -> None:
    def changed(experiment: Experiment) -> list[str]:
        return list(differences(make_experiment(base).describe(), experiment.describe()))

    assert changed(make_experiment(base)) == []
    assert changed(make_experiment(base, "b")) == ["texts..sha256"]
    assert changed(make_experiment(base, warmup=3)) == ["warmup"]
    relaxed = replace(base, rule=RelaxedRule(3, 1.0))
    rule = [f"systems.constant k 1, 1 thread.rule.{part}" for part in ("beta", "tau")]
    assert changed(make_experiment(relaxed)) == rule
    wide = changed(make_experiment(replace(base, precision="float64")))
    names = ("AR", "drafter", "constant k 1")
    assert wide == [f"systems.{name}, 1 thread.precision" for name in names]
    limits = replace(base.limits, max_len_b=9)
    assert changed(make_experiment(replace(base, limits=limits))) == ["settings.limits.max_len_b"]
    # These are told by the runs, and may be added to what is there.
    assert changed(make_experiment(base, batches=(1, 2), rounds=range(1, 10))) == []
    experiment = make_experiment(base)
    assert changed(replace(experiment, systems=experiment.systems[:2])) == [
        "systems.constant k 1, 1 thread"
    ]


def test_of_sampling_there_is_a_round_for_each_seed(base: Settings) -> None:
    """And more seeds are added to what is there."""
    base = replace(base, rule=SamplingRule())
    experiment = make_experiment(base, rounds=(5, 3))
    assert [one.number for one in experiment.pending(())] == [5, 3]
    assert {name for *_, name in order(experiment)} == {"AR", "constant k 1"}
    more = make_experiment(base, rounds=(5, 3, 7))
    assert list(differences(experiment.describe(), more.describe())) == []
    done = [made(experiment, name, number) for _, number, name in order(experiment)]
    assert {number for _, number, _ in order(more, done)} == {7}


def test_texts_come_one_after_another(base: Settings) -> None:
    """Each with rounds of its own; those of another one do not count."""
    texts = [make_text(name, name) for name in ("near", "far")]
    experiment = make_experiment(base, texts=texts, rounds=(1, 2))
    found = [(one.text.name, one.number) for one in experiment.pending(())]
    assert found == [("near", 1), ("near", 2), ("far", 1), ("far", 2)]
    done = [make_run(system, text="far") for system in experiment.systems]
    assert ("far", 1) not in [(one.text.name, one.number) for one in experiment.pending(done)]
    alone = make_experiment(base, texts=texts[:1]).describe()
    assert list(differences(alone, experiment.describe())) == ["texts.far"]


def test_other_files_and_threads_are_another_experiment(base: Settings) -> None:
    def describe(controller: str, threads: int = 1) -> dict[str, Any]:
        return make_experiment(base, controller=controller, threads=threads).describe()

    head = Path(base.data) / "acceptance_head.pt"
    head.write_text("a head")
    plain, with_head = describe("constant"), describe("acceptance-head")
    head.write_text("another")
    # Who asks no head does not mind.
    assert describe("constant") == plain
    assert list(differences(with_head, describe("acceptance-head"))) == ["models.acceptance_head"]
    Path(str(base.path)).write_text("another")
    assert list(differences(plain, describe("constant"))) == ["models.drafter"]
    assert "systems.AR, 2 threads" in differences(plain, describe("constant", 2))
