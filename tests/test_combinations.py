"""Every valid combination of controller, drafts, block, batch and engine translates a shipped pair.

In float32 the words are those of greedy search without drafts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, product
from pathlib import Path
from random import Random
from typing import Any

import pytest
from helpers.decoding.shared_sessions import SharedSessions

from specdec_plugins.checkpoints.loading import State
from specdec_plugins.decoding.controllers.base import CONTROLLERS
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.engine import Engine, Engines
from specdec_plugins.inference import Settings, load_translator, loading
from specdec_plugins.inference.drafts import copy as copy_drafts
from specdec_plugins.tasks.translation_specdec import TranslationSpecdecTask

ROOT = Path(__file__).resolve().parent.parent
TEXTS = {"multi30k.en-de": "captions", "wmt.en-de": "example"}
ENGINES = (("eager", "float32"), ("onnxruntime", "float32"), ("onnxruntime", "int8"))
LINES = 20


@dataclass(frozen=True)
class Case:
    """A combination; ``drafts`` as ``--drafts`` has it, None for the pair's drafter."""

    pair: str
    controller: str
    drafts: str | None
    block_size: int
    batch: int
    engine: tuple[str, str]

    def __str__(self) -> str:
        drafts = self.drafts or "drafter"
        sizes = f"block {self.block_size}, batch {self.batch}"
        return f"{self.pair}, {self.controller}, {drafts}, {sizes}, {' '.join(self.engine)}"

    @property
    def settings(self) -> Settings:
        engine, precision = self.engine
        return replace(
            settings_of(self.pair),
            controller=CONTROLLERS[self.controller](),
            drafts=self.drafts,
            block_size=self.block_size,
            batch=self.batch,
            engine=engine,
            precision=precision,
        )

    @property
    def values(self) -> set[tuple[tuple[str, object], ...]]:
        """All pairs of its values."""
        return set(combinations(vars(self).items(), 2))


@cache
def settings_of(pair: str) -> Settings:
    return Settings.of_model(ROOT / "checkpoints" / pair)


def cases() -> Iterator[Case]:
    """All combinations that settings take."""
    drafts = (None, "copy", "source", "texts")
    for values in product(TEXTS, CONTROLLERS, drafts, (1, 2, 8), (1, 3, 8), ENGINES):
        case = Case(*values)
        try:
            _ = case.settings
        except ValueError:
            continue  # for instance a tree of a text
        yield case


def pairwise() -> list[Case]:
    """A few of them, in which every two values that can meet do so."""
    left = list(cases())
    Random(1).shuffle(left)
    chosen: list[Case] = []
    seen: set[object] = set()
    for wanted in (8, 4, 2, 1):
        for case in left:
            if len(case.values - seen) >= wanted:
                chosen.append(case)
                seen |= case.values
    return chosen


@cache
def engine_of(name: str, precision: str) -> Engine:
    return EagerEngine(precision) if name == "eager" else SharedSessions(precision)


@pytest.fixture(autouse=True)
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load the models and dictionaries of a pair, and compile its steps, once."""
    for name in ("load_verifier", "load_drafter", "load_head"):
        monkeypatch.setattr(loading, name, once(name))
    monkeypatch.setattr(loading, "build_task", build_task_once)

    def choose(name: str, precision: str, drafts: str | None, device: str) -> Engines:
        drafter = engine_of(name, drafts or precision)
        return Engines(engine_of(name, precision), drafter)

    def choose_one(name: str, precision: str, device: str) -> Engine:
        return engine_of("onnxruntime" if name == "auto" else name, precision)

    monkeypatch.setattr(loading, "choose_engines", choose)
    monkeypatch.setattr(copy_drafts, "choose_engine", choose_one)


@cache
def once(name: str) -> Any:
    load, loaded = getattr(loading, name), dict[Any, Any]()

    def load_once(path: Any, *rest: object) -> Any:
        key = (str(path), rest[-1] if name == "load_head" else None)
        if key not in loaded:
            loaded[key] = load(path, *rest)
        return loaded[key]

    return load_once


build_task = loading.build_task
tasks: dict[str, TranslationSpecdecTask] = {}


def build_task_once(settings: Settings, states: dict[str, State] | None) -> TranslationSpecdecTask:
    """Read the dictionaries of a pair once."""
    if settings.data not in tasks:
        tasks[settings.data] = build_task(settings, states)
    return tasks[settings.data]


@cache
def expected(pair: str) -> list[str]:
    """The greedy output in float32, by PyTorch."""
    settings = Settings.of_model(
        ROOT / "checkpoints" / pair, strategy="AR", batch=8, engine="eager", precision="float32"
    )
    return [t.text for t in load_translator(settings).translate(lines_of(pair))]


def lines_of(pair: str) -> list[str]:
    return (ROOT / "data" / f"{TEXTS[pair]}.en").read_text("utf-8").splitlines()[:LINES]


def check(case: Case, count: int) -> None:
    greedy = expected(case.pair)[:count]
    texts = lines_of(case.pair)[:count]
    translator = load_translator(case.settings)
    drafts = greedy if translator.settings.drafts_path else None
    found = [t.text for t in translator.translate(texts, drafts=drafts)]
    assert len(found) == count
    if case.engine[1] == "float32":
        assert found == greedy
    assert translator.statistics.sentences == count


@pytest.mark.parametrize("case", pairwise(), ids=str)
def test_values_that_meet_work_together(case: Case) -> None:
    check(case, 3)


@pytest.mark.slow
@pytest.mark.parametrize("case", cases(), ids=str)
def test_every_combination(case: Case) -> None:
    check(case, LINES)
