"""The output that is most like a reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inference_runs import SENTENCES, make_settings

from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.input import Line
from specdec_plugins.inference import load_translator
from specdec_plugins.inference.references import LineReferences

pytest_plugins = ["inference_runs"]

sentences = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=8).map(" ".join)


def references(folder: Path, *lines: str) -> LineReferences:
    path = folder / "references.txt"
    path.write_text("".join(f"{line}\n" for line in lines))
    return LineReferences(str(path))


def test_the_closest_is_taken(tmp_path: Path) -> None:
    wanted = references(tmp_path, "a b c d", "e f")
    assert wanted.closest(1, ["x y z w", "a b x d", "a b c d x"]) == 2
    assert wanted.closest(2, ["a b c d", "e x", "e f"]) == 2
    # Of equals the first, which the model likes best.
    assert wanted.closest(2, ["x y", "e f x", "e f x", "e f y"]) == 1


def test_markers_of_subwords_do_not_count(tmp_path: Path) -> None:
    """Neither as words of their own nor where a word is cut."""
    wanted = references(tmp_path, "walk@@ ing home a@@", "a")
    assert wanted.closest(1, ["walk ing home a", "wal@@ king home b"]) == 1
    assert references(tmp_path, "a@@").closest(1, ["b", "a"]) == 1


@given(wanted=sentences, outputs=st.lists(sentences, min_size=1, max_size=4))
def test_the_reference_itself_is_closest(
    wanted: str, outputs: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    one = references(tmp_path_factory.mktemp("one"), wanted)
    assert [*outputs, wanted][one.closest(1, [*outputs, wanted])] == wanted


def test_references_that_are_too_few(tmp_path: Path) -> None:
    wanted = references(tmp_path, "a", "b")
    wanted.check(2, "in.txt")
    fault = r"--closest-to .*references.txt: has 2 lines, in.txt has 3; give a reference for every"
    with pytest.raises(InferenceError, match=fault):
        wanted.check(3, "in.txt")
    with pytest.raises(InferenceError, match="has 2 lines, and the input has more"):
        wanted.closest(3, ["a"])
    with pytest.raises(InferenceError, match=r"--closest-to gone\.txt: cannot be read"):
        LineReferences("gone.txt")
    (tmp_path / "latin.txt").write_bytes(b"a\n\xe4\n")
    with pytest.raises(InferenceError, match=r"latin.txt: line 2 is not UTF-8"):
        LineReferences(str(tmp_path / "latin.txt"))


def test_a_translator_chooses_by_line(world: Path, tmp_path: Path) -> None:
    """Whatever the order of batches: every line has the reference of its number."""
    stock = {"strategy": "fairseq", "beam": 4, "batch": 2, "keep_bpe": True}
    plain = load_translator(make_settings(world, **stock))
    lines = [Line(number, text) for number, text in enumerate(["", *SENTENCES], start=1)]
    first = [result.text for result in plain.translate(lines)]
    beams: dict[str, list[str]] = {}
    generate = plain.generator.generate

    def generate_and_keep(models: Any, sample: Any) -> Any:
        rows = generate(models, sample)
        for hypotheses in rows:
            texts = [plain.codec.decode(hypothesis["tokens"]) for hypothesis in hypotheses]
            beams[texts[0]] = texts
        return rows

    plain.generator.generate = generate_and_keep  # type: ignore[method-assign]
    list(plain.translate(lines))
    wanted = ["", *(beams[text][-1] for text in first[1:])]
    assert wanted != first
    path = tmp_path / "wanted.txt"
    path.write_text("".join(f"{text}\n" for text in wanted))
    chosen = load_translator(make_settings(world, closest_to=str(path), **stock))
    results = list(chosen.translate(lines))
    assert [result.text for result in results] == wanted
    assert [result.tokens for result in results[1:]] == [
        len(chosen.codec.target.encode_line(text, add_if_not_exist=False)) for text in wanted[1:]
    ]


@pytest.mark.parametrize("other", [{"strategy": "specdec"}, {"strategy": "fairseq", "beam": 1}])
def test_what_has_nothing_to_choose_is_refused(world: Path, other: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"--closest-to some\.txt: chooses among the outputs of"):
        make_settings(world, closest_to="some.txt", **other)
