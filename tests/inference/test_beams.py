"""Beams of lines of text: stock fairseq's hypotheses, by the engines that run everything else."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from helpers.runs.inference_runs import SENTENCES, make_settings

from specdec_plugins.decoding.acceptance import SamplingRule
from specdec_plugins.decoding.controllers.simple import Tree
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.inference import Translation, load_translator
from specdec_plugins.inference.report import model_files

EXACT = {"precision": "float64", "engine": "eager"}
SEARCHES: dict[str, dict[str, Any]] = {
    "beam": {},
    "lenpen": {"limits": GenerationLimits(max_len_b=9, lenpen=0.6)},
    "unnormalised": {"limits": GenerationLimits(max_len_b=9, normalize_scores=False)},
    "no repeats": {"search_options": {"no_repeat_ngram_size": 2}},
    "groups": {"search_options": {"diverse_beam_groups": 2, "diverse_beam_strength": 0.3}},
    "siblings": {"search_options": {"diversity_rate": 0.5}},
    "length": {"search_options": {"match_source_len": True}},
    "prefix": {"target_prefix": "w3 w7"},
}


def check_equal(found: list[Translation], expected: list[Translation]) -> None:
    for result, other in zip(found, expected, strict=True):
        assert [x.tokens for x in result.hypotheses] == [x.tokens for x in other.hypotheses]
        for x, y in zip(result.hypotheses, other.hypotheses, strict=True):
            assert x.score == pytest.approx(y.score, abs=1e-4)
            assert x.positional_scores == pytest.approx(y.positional_scores, abs=1e-4)


@pytest.mark.usefixtures("exact_softmax")
@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("batch", [1, 4])
def test_hypotheses_are_stock_fairseqs(name: str, batch: int, world: Path) -> None:
    """In float64; by an engine for CPUs, too, since random verifiers have no near-ties."""
    plain = make_settings(world, beam=4, nbest=4, batch=batch)
    plain = replace(plain, **SEARCHES[name])
    settings = replace(plain, **EXACT)
    translator = load_translator(settings)
    lines = [*SENTENCES[:5], ""]
    found = list(translator.translate(lines))
    expected = list(load_translator(replace(settings, strategy="fairseq")).translate(lines))
    check_equal(found, expected)
    assert [len(result.hypotheses) for result in found] == [4] * 5 + [0]
    assert [result.text for result in found[:-1]] == [x.hypotheses[0].text for x in found[:-1]]
    assert found[0].line == "\t".join(x.text for x in found[0].hypotheses)
    assert found[-1].line == ""
    assert translator.engine == "eager"
    default = load_translator(plain)
    check_equal(list(default.translate(lines)), expected)
    assert default.engine == "onnxruntime"


def test_a_pair_lends_its_verifier(world: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A beam takes no drafts, which is said once, and needs no drafter."""
    pair = load_translator(make_settings(world, beam=3))
    fault = "--beam 3: fairseq's search takes no drafts; --beam 1 without its options does"
    assert caplog.text.count(fault) == 1
    alone = load_translator(make_settings(world, beam=3, path=None, strategy="AR"))
    check_equal(list(pair.translate(SENTENCES)), list(alone.translate(SENTENCES)))
    assert caplog.text.count("takes no drafts") == 1
    options = {"beam": 1, "search_options": {"no_repeat_ngram_size": 2}}
    load_translator(make_settings(world, **options))

    assert "--no-repeat-ngram-size: fairseq's search takes no drafts" in caplog.text
    with pytest.raises(ValueError, match=r"^--drafts copy --no-repeat-ngram-size: fairseq's"):
        make_settings(world, drafts="copy", **options)
    with pytest.raises(ValueError, match=r"^--controller tree: .* with --no-repeat-ngram-size$"):
        make_settings(world, controller=Tree(), **options)
    assert pair.statistics.steps == pair.statistics.committed_tokens


@pytest.mark.usefixtures("exact_softmax")
@pytest.mark.parametrize("batch", [1, 4])
def test_an_ensemble_is_stock_fairseqs(batch: int, world: Path) -> None:
    """Two verifiers are told from a drafter by their architectures."""
    alone = make_settings(world, beam=4, nbest=4, batch=batch, path=None)
    settings = replace(alone, ensemble=(str(world / "wide.pt"),))
    stock = load_translator(replace(settings, **EXACT, strategy="fairseq"))
    expected = list(stock.translate(SENTENCES[:5]))
    check_equal(
        list(load_translator(replace(settings, **EXACT)).translate(SENTENCES[:5])), expected
    )
    default = load_translator(settings)
    check_equal(list(default.translate(SENTENCES[:5])), expected)
    assert default.engine == "onnxruntime"
    assert model_files(settings)["verifier 2"] == str(world / "wide.pt"), "resuming knows it"
    one = list(load_translator(alone).translate(SENTENCES[:5]))
    assert [result.text for result in one] != [result.text for result in expected]
    with pytest.raises(ValueError, match="ensembles have beam search alone"):
        replace(settings, beam=1, nbest=1)


def stock_alignments(verifier: Path, lines: list[str], kind: str) -> list[list[Any]]:
    """Alignments of each line's hypotheses by stock fairseq alone, from the files themselves."""
    data = {"data": str(verifier.parent), "_name": "translation"}
    load = checkpoint_utils.load_model_ensemble_and_task
    models, _, task = load([str(verifier)], {"task": data})
    options = Namespace(beam=4, max_len_b=9, print_alignment=kind)
    for model in models:
        model.prepare_for_inference_(Namespace(generation=options))
    generator = task.build_generator(models, options)
    found = []
    for line in lines:
        ids = task.source_dictionary.encode_line(line, add_if_not_exist=False).long()
        pairs = task.build_dataset_for_inference([ids], [len(ids)])
        (several,) = task.inference_step(generator, models, pairs.collater([pairs[0]]))
        found.append([hypothesis["alignment"] for hypothesis in several])
    return found


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("strategy", ["specdec", "fairseq"])
@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_alignments_are_stock_fairseqs(kind: str, strategy: str, batch: int, world: Path) -> None:
    """Unknown words of sources and outputs are aligned, too."""
    draw = Random(5)
    lines = [
        " ".join(f"w{draw.randrange(20)}" for _ in range(draw.randint(1, 9))) for _ in range(29)
    ]
    lines.append("w3 unheard w5")
    limits = GenerationLimits(max_len_b=9, unkpen=0)
    asked = {"beam": 4, "nbest": 4, "batch": batch, "limits": limits, "strategy": strategy}
    settings = make_settings(world, **asked, print_alignment=kind)
    translator = load_translator(settings)
    assert translator.engine == "eager"
    found = list(translator.translate([*lines, ""]))
    assert found.pop().hypotheses == []
    hypotheses = [hypothesis for line in found for hypothesis in line.hypotheses]
    expected = [
        one for line in stock_alignments(world / "verifier.pt", lines, kind) for one in line
    ]
    assert any("<unk>" in hypothesis.tokens for hypothesis in hypotheses)
    for hypothesis, right in zip(hypotheses, expected, strict=True):
        if kind == "hard":
            assert hypothesis.alignment == right
            assert [target for _, target in right] == [*range(len(hypothesis.tokens) - 1)]
        else:
            rows = [[float(part) for part in row] for row in right]
            torch.testing.assert_close(
                torch.tensor(hypothesis.alignment), torch.tensor(rows), atol=2e-5, rtol=0
            )
    plain = load_translator(replace(settings, print_alignment=None))
    (unasked,) = plain.translate(lines[:1])
    assert [x.alignment for x in unasked.hypotheses] == [[]] * 4


@pytest.mark.parametrize("full_context", [False, True])
def test_alignments_of_a_verifier_trained_for_them(
    full_context: bool, world: Path, tmp_path: Path
) -> None:
    """With ``full_context_alignment`` fairseq reads each output once more, as a whole."""
    state = torch.load(world / "verifier.pt", weights_only=False)
    cfg = state["cfg"]["model"]
    cfg.arch = cfg._name = "transformer_align"
    cfg.alignment_heads = 1
    cfg.alignment_layer = 0
    cfg.full_context_alignment = full_context
    verifier = tmp_path / "verifier.pt"
    torch.save(state, verifier)
    for name in ("dict.en.txt", "dict.de.txt"):
        (tmp_path / name).symlink_to(world / name)
    asked = {"beam": 4, "nbest": 4, "path": None, "batch": 4, "print_alignment": "hard"}
    found = load_translator(make_settings(world, ar_path=str(verifier), **asked))
    results = found.translate(SENTENCES)
    alignments = [[one.alignment for one in result.hypotheses] for result in results]
    assert alignments == stock_alignments(verifier, SENTENCES, "hard")


def test_alignments_of_an_ensemble_and_of_greedy_search(world: Path) -> None:
    """A verifier beside itself aligns as it does alone; fairseq's own search has a beam of 1."""
    alone = make_settings(world, beam=4, path=None, print_alignment="hard")
    both = replace(alone, ensemble=(str(world / "verifier.pt"),))
    greedy = replace(alone, strategy="fairseq", beam=1)
    pairs = []
    for settings in (alone, both, greedy):
        found = load_translator(settings).translate(SENTENCES)
        pairs.append([result.hypotheses[0].alignment for result in found])
    assert pairs[0] == pairs[1]
    assert all(len(pairs[2][row]) > 0 for row in range(len(SENTENCES)))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"beam": 1}, "--print-alignment hard: is of beams; give --beam 2 or more"),
        ({"strategy": "AR", "beam": None}, "--print-alignment hard: is of beams; give --beam 2"),
        (
            {"engine": "onnxruntime"},
            "--print-alignment hard: not by --engine onnxruntime; give --engine eager",
        ),
        ({"print_alignment": "both"}, "--print-alignment both: must be one of hard, soft"),
        ({"split_sentences": True}, "--print-alignment hard: does not work with --split-sentences"),
    ],
)
def test_alignments_that_nobody_has(asked: dict[str, object], message: str, world: Path) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        make_settings(world, **{"beam": 4, "print_alignment": "hard", **asked})


def test_a_beam_that_ends_with_fewer_outputs_than_fairseq_aligns(world: Path) -> None:
    """It ends so where the target prefix is as long as an output may be."""
    asked = {"target_prefix": "w3 w7 w1 w2", "limits": GenerationLimits(max_len_b=2)}
    settings = make_settings(world, beam=4, nbest=4, **asked)
    (found,) = load_translator(settings).translate(SENTENCES[:1])
    assert 0 < len(found.hypotheses) < 4
    aligned = load_translator(replace(settings, print_alignment="hard"))
    with pytest.raises(InferenceError, match="or a beam has fewer outputs than fairseq can align"):
        list(aligned.translate(SENTENCES[:1]))


def test_lines_with_constraints(world: Path) -> None:
    """Stand after tabs, as for fairseq-interactive; a word that the dictionary lacks is <unk>."""
    options = {"constraints": "ordered"}
    translator = load_translator(make_settings(world, beam=4, batch=3, search_options=options))
    lines = ["w3 w4 w5\tw9\tw11 w2", "w7", "w1 w2\tnever"]
    found = [result.tokens for result in translator.translate(lines)]
    assert found[0].index("w9") < found[0].index("w11")
    assert found[0][found[0].index("w11") + 1] == "w2"
    assert "<unk>" in found[2]
    plain = load_translator(make_settings(world, beam=4, batch=3))
    assert [result.tokens for result in plain.translate(["w7"])] == found[1:2]


def test_drawn_beams_are_drawn_anew_from_the_same_seed(world: Path) -> None:
    settings = make_settings(world, beam=3, nbest=3, rule=SamplingRule(sampling_topk=4), **EXACT)
    translator = load_translator(settings)
    first, again, other = (
        [result.line for result in translator.translate(SENTENCES, seed=seed)] for seed in (1, 1, 2)
    )
    assert first == again != other
    both = replace(settings, rule=SamplingRule(sampling_topk=4, sampling_topp=0.5))
    with pytest.raises(ValueError, match="fairseq takes one of them"):
        load_translator(both)


def test_scores_that_are_no_numbers(world: Path, tmp_path: Path) -> None:

    state = torch.load(world / "verifier.pt", weights_only=False)
    state["model"]["decoder.layers.0.fc1.weight"][::2] = 3e38
    state["model"]["decoder.layers.0.fc1.weight"][1::2] = -3e38
    torch.save(state, tmp_path / "verifier.pt")
    settings = make_settings(world, ar_path=str(tmp_path / "verifier.pt"), engine="eager", beam=3)
    with pytest.raises(InferenceError, match="scores are not numbers"):
        list(load_translator(settings).translate(SENTENCES))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"search_options": {"diverse_beam_groups": 3}}, "divisible by the number of groups"),
        (
            {"search_options": {"diverse_beam_groups": 2, "diversity_rate": 0.5}},
            "mutually exclusive",
        ),
    ],
)
def test_searches_that_fairseq_refuses(asked: dict[str, object], message: str, world: Path) -> None:
    translator_of = make_settings(world, beam=4, **asked)
    with pytest.raises(ValueError, match=message):
        list(load_translator(translator_of).translate(SENTENCES[:1]))


def test_a_beam_wider_than_the_vocabulary(world: Path) -> None:
    """fairseq narrows it."""
    translator = load_translator(make_settings(world, beam=90, nbest=90))
    (found,) = translator.translate(["w3 w4"])
    assert len(found.hypotheses) == len(translator.codec.target) - 1
