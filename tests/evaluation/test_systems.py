"""Systems, as they are written and as they decode."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from helpers.runs.experiments import BASE

from specdec_plugins.decoding.acceptance import RelaxedRule, SamplingRule, StrictRule
from specdec_plugins.decoding.controllers.base import CONTROLLERS
from specdec_plugins.decoding.controllers.simple import Tree
from specdec_plugins.inference.systems import parse_system


def test_systems_without_drafts() -> None:
    base = replace(BASE, drafter_precision=None, rule=RelaxedRule(3, 1.0), block_size=4)
    beam = parse_system("fairseq@beam=4", base)
    assert (beam.strategy, beam.beam, beam.rule) == ("fairseq", 4, StrictRule())
    assert beam.engines[0] == "eager"
    greedy = parse_system("AR@float64,lenpen=0.5", base)
    assert (greedy.strategy, greedy.precision, greedy.limits.lenpen) == ("AR", "float64", 0.5)
    assert (greedy.block_size, greedy.ar_backend) == (None, "ours")
    peer = parse_system("ctranslate2@int8", base)
    assert (peer.precision, peer.policy) == ("int8", "ctranslate2")
    assert parse_system("ctranslate2", base).precision == "float32"


def test_beams() -> None:
    """Of every other system the beam is 1, whatever the default."""
    base = replace(BASE, beam=4)
    for system, beams in {
        "beam": 4,
        "beam@beam=3,lenpen=0.6": 3,
        "fairseq": 4,
        "ctranslate2": 1,
        "ctranslate2@int8,beam=6": 6,
        "AR": 1,
        "tree": 1,
        "drafter": 1,
    }.items():
        settings = parse_system(system, base)
        assert settings.beams == beams
        assert settings.searched == (beams > 1 and not system.startswith("fairseq"))
    assert parse_system("beam", BASE).beams == parse_system("fairseq", BASE).beams == 5
    assert parse_system("beam@float64", BASE).policy == "beam"
    assert parse_system("ctranslate2@beam=6", BASE).policy == "ctranslate2"


def test_drafts_are_in_int8_where_output_does_not_depend_on_them() -> None:
    for system, precision in {
        "tree@": "int8",
        "tree@drafter_precision=float32,": "float32",
        "tree@beta=3,tau=1,": None,
        "constant@sampling=true,": None,
        "drafter@": None,
        "AR@": None,
    }.items():
        assert parse_system(f"{system}engine=onnxruntime", BASE).engines[2] == precision
    assert parse_system("tree@engine=eager", BASE).engines[2] == "float32"


def test_systems_that_draft() -> None:
    found = parse_system("tree@tree_nodes=16,redraft_below=inf,beta=3,tau=1,block_size=4", BASE)
    assert found.controller == Tree(tree_nodes=16, redraft_below=math.inf)
    assert (found.rule, found.block_size) == (RelaxedRule(3, 1.0), 4)
    drawn = parse_system("constant@sampling=true,sampling_topk=9", BASE)
    assert drawn.rule == SamplingRule(sampling_topk=9)
    # Options that all systems share, unless they have their own.
    shared = {"tree_nodes": 12, "redraft_below": 1.0, "stop_threshold": 0.5}
    found = parse_system("tree@tree_nodes=4", BASE, shared)
    assert found.controller == Tree(tree_nodes=4, redraft_below=1.0)
    alone = parse_system("drafter", replace(BASE, rule=RelaxedRule(3, 1.0)))
    assert (alone.strategy, alone.policy) == ("drafter", "drafter")


@pytest.mark.parametrize("name", sorted(CONTROLLERS))
def test_every_controller_is_a_system(name: str) -> None:
    found = parse_system(name, BASE)
    assert found.policy == name


@pytest.mark.parametrize(
    "text",
    [
        *("beams", "tree@nodes=4", "tree@tree_nodes=many", "tree@tree_nodes=0", "tree@beta=0"),
        *("AR@beam", "fairseq@beam=0", "ctranslate2@beam=0", "constant@tree_nodes=4"),
        "constant@drafts=a_file",
        *("AR@beam=5", "drafter@beta=9", "ctranslate2@sampling=true", "tree@int8,float32"),
    ],
)
def test_systems_that_cannot_be(text: str) -> None:
    with pytest.raises(ValueError, match="--"):
        parse_system(text, BASE)
