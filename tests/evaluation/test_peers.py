"""What a pair is compared with, by which settings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specdec_plugins.decoding.acceptance import RelaxedRule, StrictRule
from specdec_plugins.decoding.controllers import ControllerOptions
from specdec_plugins.engines import openvino_core
from specdec_plugins.evaluation.peers import Peers, peer_systems
from specdec_plugins.evaluation.systems import CTRANSLATE2, System, choose_baseline
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.inference import Settings

BASE = Settings("data", path="d.pt", ar_path="v.pt", engine="eager", beam=1, block_size=3)


def test_all_combinations_each_once() -> None:
    choice = Peers(
        threads=(2, 1, 2),
        beams=(5, 5),
        ctranslate2=("int8",),
        precisions=("float32",),
        engines=("eager", "openvino"),
        controllers=(ControllerOptions("tree"), ControllerOptions("constant")),
        rules=(StrictRule(), RelaxedRule(3, 1.0)),
    )
    systems = peer_systems(BASE, choice)
    names = [
        *("fairseq beam 5", "CTranslate2 int8", "AR float32", "AR openvino float32"),
        *("strict tree float32", "strict tree openvino float32"),
        *("strict constant float32", "strict constant openvino float32"),
        *("relaxed tree float32", "relaxed tree openvino float32"),
        *("relaxed constant float32", "relaxed constant openvino float32"),
    ]
    assert [system.name for system in systems] == 2 * names
    assert systems[0].label == "fairseq beam 5, 2 threads"
    assert systems[-1].label == "relaxed constant openvino float32, 1 thread"
    assert [system.engine for system in systems[2:4]] == ["eager", "openvino"]
    assert systems[-1].describe() == {
        "strategy": "specdec",
        "k": 3,
        "options": {"controller": "constant", "max_draft": None},
        "rule": {"beta": 3, "tau": 1.0},
        "beam": 1,
        "engine": "openvino",
        "precision": "float32",
        "drafter_precision": None,
        "threads": 1,
    }
    assert [system.strategy for system in systems[:3]] == ["fairseq", CTRANSLATE2, "AR"]


def test_rules_of_one_kind_are_told_apart_by_their_values() -> None:
    rules = (StrictRule(), RelaxedRule(3, 1.0), RelaxedRule(5, 3.0))
    systems = peer_systems(
        BASE, Peers(threads=(1,), beams=(), precisions=("float32",), rules=rules)
    )
    drafting = [system for system in systems if system.options]
    assert [system.name for system in drafting] == [
        *("strict tree float32", "relaxed 3 1.0 tree float32", "relaxed 5 3.0 tree float32")
    ]


def test_drafts_in_a_precision_of_their_own() -> None:
    """Where OpenVINO has it, and none that takes more than the verifier's."""
    choice = Peers(
        threads=(1,),
        beams=(),
        precisions=("float32", "float64", "int8"),
        engines=("eager", "openvino"),
        drafter_precisions=("float32", "int8"),
    )
    drafting = [system for system in peer_systems(BASE, choice) if system.options]
    assert [(system.name, system.settings.drafter_precision) for system in drafting] == [
        ("strict tree float32", None),
        ("strict tree float64", None),
        ("strict tree openvino float32", None),
        ("strict tree openvino float32, int8 drafts", "int8"),
        ("strict tree openvino int8", None),
    ]
    settings = drafting[3].settings
    assert (settings.precision, settings.drafter_precision) == ("float32", "int8")
    assert drafting[3].precision == "float32, int8 drafts"


def test_a_precision_that_is_computed_in_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without bfloat16 OpenVINO would be timed in float32 twice, under two names."""
    monkeypatch.setattr(openvino_core, "has_bfloat16", lambda: False)
    choice = Peers(
        threads=(1,),
        beams=(),
        precisions=("float32", "bfloat16"),
        engines=("eager", "openvino"),
        drafter_precisions=("float32",),
    )
    found = [system.name for system in peer_systems(BASE, choice) if system.policy == "AR"]
    assert found == ["AR float32", "AR bfloat16", "AR openvino float32"]
    drafts = replace(choice, precisions=("float32",), drafter_precisions=("bfloat16",))
    with pytest.raises(ValueError, match="--drafter-precision bfloat16: needs"):
        peer_systems(BASE, drafts)


@pytest.mark.parametrize(
    ("engines", "precision"), [(("eager",), "float32"), (("openvino",), "int8")]
)
def test_drafts_that_nothing_has(engines: tuple[str, ...], precision: str) -> None:
    choice = Peers(engines=engines, precisions=(precision,), drafter_precisions=("bfloat16",))
    with pytest.raises(ValueError, match="--drafter-precision bfloat16: needs --engine openvino"):
        peer_systems(BASE, choice)


def test_nothing_that_goes_together() -> None:
    with pytest.raises(ValueError, match="--precision int8: is not for --engine eager"):
        peer_systems(BASE, Peers(engines=("eager",), precisions=("int8",)))


def test_settings() -> None:
    for system in peer_systems(BASE, Peers(precisions=("bfloat16",), beams=(4,))):
        settings, fairseq = system.settings, system.strategy == "fairseq"
        assert settings.drafts == (system.policy == "tree")
        assert settings.block_size == (3 if settings.drafts else None)
        assert settings.precision == ("float32" if fairseq else "bfloat16")
        assert (system.beam, system.engine) == (4 if fairseq else 1, "eager")


def test_the_baseline() -> None:
    def systems(*names: str) -> list[System]:
        return [System(name, BASE, 1) for name in names]

    assert choose_baseline(systems("a", "CTranslate2 float32"), None) == "CTranslate2 float32"
    assert choose_baseline(systems("a", "b"), None) == "a"
    assert choose_baseline(systems("a", "b"), "b") == "b"
    with pytest.raises(InferenceError, match="--baseline 'c': is not one of the systems: a, b"):
        choose_baseline(systems("a", "b", "a"), "c")
