"""Target prefixes through Python: outputs are stock search's with the same ``prefix_tokens``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.decoding.strict import beam1
from helpers.runs.inference_runs import SENTENCES, make_settings

from specdec_plugins.decoding.controllers.simple import Confidence, Constant, Oracle, Tree
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.host.fairseq_types import Sample
from specdec_plugins.inference import Translator, load_translator

WHOLE = "w4 w2"
PREFIXES = ["w4 w2", "", "w9", "w1 w1 w1 w1", "w0", " ", "w19 w3", "w5", "w7 w8 w9"]
"""One of each sentence."""


def load(world: Path, **given: object) -> Translator:
    exact = {"precision": "float64", "engine": "eager", "keep_bpe": True}
    return load_translator(make_settings(world, **exact, **given))


def stock(translator: Translator, prefixes: Sequence[str]) -> list[str]:
    """What stock search says to the sentences, one by one."""
    source, target = translator.codec.source, translator.codec.target
    found = []
    for text, prefix in zip(SENTENCES, prefixes, strict=True):
        ids = source.encode_line(text, add_if_not_exist=False).long()[None]
        forced = target.encode_line(prefix, add_if_not_exist=False, append_eos=False).long()[None]
        net_input = {"src_tokens": ids, "src_lengths": torch.tensor([ids.size(1)])}
        batch: Sample = {"id": torch.zeros(1), "net_input": net_input}
        model, limits = translator.generator.model, translator.settings.limits  # type: ignore[attr-defined]
        (output,) = beam1(model, batch, limits, prefix_tokens=forced)
        found.append(target.string(output["tokens"]))
    return found


@pytest.fixture(scope="module")
def expected(world: Path) -> dict[str, list[str]]:
    """Of stock search: with one prefix for all, and with one for each."""
    ar = load(world, strategy="AR")
    found = {"whole": stock(ar, [WHOLE] * len(SENTENCES)), "each": stock(ar, PREFIXES)}
    assert all(len(set(outputs)) > 4 for outputs in found.values())
    assert all(text.startswith(WHOLE) for text in found["whole"])
    return found


def texts(translator: Translator, **given: Any) -> list[str]:
    return [result.text for result in translator.translate(SENTENCES, **given)]


@pytest.mark.parametrize(
    ("given", "batch"),
    [
        ({"strategy": "AR"}, 4),
        ({"controller": Constant()}, 1),
        ({"controller": Tree()}, 4),
        ({"controller": Confidence(), "path": "shared.pt"}, 4),
        ({"controller": Oracle(), "path": "block.pt"}, 9),
        ({"strategy": "fairseq", "beam": 1}, 4),
    ],
    ids=str,
)
def test_outputs_are_those_of_stock_search(
    world: Path, expected: dict[str, list[str]], given: dict[str, Any], batch: int
) -> None:
    """With the settings' prefix, with one for all lines, and with one for each."""
    if "path" in given:
        given = {**given, "path": str(world / given["path"])}
    translator = load(world, batch=batch, target_prefix=WHOLE, **given)
    assert texts(translator) == expected["whole"]
    found = translator.statistics
    assert found.forced_tokens == 2 * len(SENTENCES)
    length = sum(len(text.split()) + 1 for text in expected["whole"])
    assert found.committed_tokens == length - found.forced_tokens
    if not found.drafted_tokens:
        assert found.steps == found.committed_tokens
    assert texts(translator, target_prefix=PREFIXES) == expected["each"]
    assert texts(translator, target_prefix=iter([WHOLE] * 9)) == expected["whole"]


def test_one_prefix_for_all_lines_of_a_call(world: Path, expected: dict[str, list[str]]) -> None:
    translator = load(world, batch=4)
    free = texts(translator)
    assert texts(translator, target_prefix=WHOLE) == expected["whole"] != free
    assert texts(translator, target_prefix="") == texts(translator) == free
    assert [one.text for one in translator.translate([" "], target_prefix=WHOLE)] == [""]
    with pytest.raises(ValueError, match="shorter"):
        texts(translator, target_prefix=["w1"] * 8)
    alone = load(world, strategy="drafter", batch=4, target_prefix=WHOLE)
    assert all(text.startswith(WHOLE) for text in texts(alone))


@pytest.mark.parametrize(
    "options", [{"strategy": "AR"}, {"controller": Tree()}, {"drafts": "source"}]
)
@pytest.mark.parametrize("min_len", [1, 4])
def test_a_rows_minimum_length_does_not_depend_on_the_batch(
    options: dict[str, object], min_len: int, world: Path
) -> None:
    """Stock search has none within the longest prefix of a batch; EOS is likely here."""
    limits = GenerationLimits(max_len_b=9, min_len=min_len)
    lines = [f"w{i % 20} w{i * 7 % 20}" for i in range(24)]
    prefixes = ["w1 w2 w3 w4 w5", "", "w9"] * 8
    outputs = []
    for batch in (1, 3, 8):
        settings = replace(make_settings(world, **options), batch=batch, limits=limits)
        settings = replace(settings, precision="float64", engine="eager")
        translator = load_translator(settings)
        with torch.no_grad():
            eos = translator.codec.target.eos()
            translator.verifier.decoder.output_projection.weight[eos] *= 6
        found = list(translator.translate(lines, target_prefix=prefixes))
        outputs.append([translation.tokens for translation in found])
    assert outputs[0] == outputs[1] == outputs[2]
    assert min(map(len, outputs[0])) == min_len + 1


def test_the_maximum_length_cuts_a_prefix(world: Path) -> None:
    long = " ".join(f"w{i}" for i in range(12))
    for strategy in ("AR", "fairseq"):
        translator = load(world, strategy=strategy, beam=1, batch=4, target_prefix=long)
        assert set(texts(translator)) == {" ".join(long.split()[:9])}
        assert translator.statistics.forced_tokens == 9 * len(SENTENCES)
        assert translator.statistics.committed_tokens == len(SENTENCES)


def test_what_no_target_begins_with(world: Path) -> None:
    for word in ("nowhere", "<pad>"):
        with pytest.raises(ValueError, match=word):
            load(world, target_prefix=f"w1 {word}")
        found = load(world).translate(SENTENCES, target_prefix=["w2", f"w1 {word}"])
        assert next(found).text.startswith("w2")
        with pytest.raises(InferenceError, match="line 2"):
            next(found)
