"""Text to text: by our commands' settings, as by transformers' tokenizers and models."""

from __future__ import annotations

import re
import shutil
import unicodedata
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.models.folders import (
    FAMILIES,
    LINES,
    ODD,
    import_transformers,
    make_bart,
    make_m2m,
    make_marian,
    make_mbart,
    write,
)

from specdec_plugins.files.errors import CheckpointError
from specdec_plugins.inference import Settings, load_translator
from specdec_plugins.verifiers.export import write_dictionaries
from specdec_plugins.verifiers.families import family_of

EXACT = {"engine": "eager", "precision": "float64"}
STRIPPED = [line.strip() for line in [*LINES, *ODD]]


@torch.no_grad()
def expected(model: Any, tokenizer: Any, lines: list[str], **options: Any) -> list[str]:
    """Return the lines as transformers alone translates them, by ``generation_config.json``."""
    texts = []
    for line in lines:
        output = model.generate(**tokenizer([line], return_tensors="pt"), **options)
        texts.append(tokenizer.decode(output[0], skip_special_tokens=True))
    assert len(set(texts)) > len(lines) / 2
    return texts


def texts(folder: Path, lines: list[str], **options: Any) -> list[str]:
    translator = load_translator(Settings.of_model(folder, **{**EXACT, **options}))
    return [translation.text for translation in translator.translate(lines)]


#: The first token of a text may be the target's language.
CODED = [*LINES, *ODD, ">>deu<< The dog", ">>deu<<The dog", ">>fra<< The dog"]


@pytest.mark.parametrize(
    ("make", "tokenizer", "lines"),
    [
        (make_marian, "MarianTokenizer", CODED),
        (partial(make_marian, share_encoder_decoder_embeddings=False), "MarianTokenizer", CODED),
        (make_bart, "BartTokenizer", STRIPPED),
    ],
    ids=["marian", "two vocabularies", "bart"],
)
def test_one_direction(
    make: Callable[[Path], Any], tokenizer: str, lines: list[str], tmp_path: Path
) -> None:
    model = make(tmp_path)
    kind = getattr(import_transformers(), tokenizer)
    wanted = expected(model, kind.from_pretrained(tmp_path), lines)
    assert texts(tmp_path, lines, strategy="AR") == wanted
    assert texts(tmp_path, lines, drafts="source", batch=4) == wanted


def test_m2m(tmp_path: Path) -> None:
    model = make_m2m(tmp_path)
    languages = {"src_lang": "am", "tgt_lang": "af"}
    tokenizer = import_transformers().M2M100Tokenizer.from_pretrained(tmp_path, **languages)
    lines = [*LINES, *ODD]
    forced = {"forced_bos_token_id": tokenizer.get_lang_id("af")}
    wanted = expected(model, tokenizer, lines, **forced)
    pair = {"source_lang": "am", "target_lang": "af"}
    assert texts(tmp_path, lines, strategy="AR", **pair) == wanted
    # As transformers saves its tokenizer; now the folder names its languages.
    again = tmp_path / "again"
    tokenizer.save_pretrained(again)
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        shutil.copy(tmp_path / name, again)
    assert texts(again, lines, strategy="AR") == wanted


@pytest.mark.parametrize("legacy", [False, True])
def test_nllb(legacy: bool, tmp_path: Path) -> None:
    """A source's language stands before it, or after its EOS."""
    model = make_m2m(tmp_path, nllb=True)
    languages = ["deu_Latn", "eng_Latn", "zho_Hans"]
    tokenizer = import_transformers().NllbTokenizer.from_pretrained(
        tmp_path, src_lang="eng_Latn", legacy_behaviour=legacy, extra_special_tokens=languages
    )
    numbers = dict(zip(languages, tokenizer.convert_tokens_to_ids(languages)))
    write(tmp_path / "added_tokens.json", numbers)
    write(tmp_path / "tokenizer_config.json", {"legacy_behaviour": legacy})
    unnamed = [tokenizer.mask_token_id, len(tokenizer)]
    model.generation_config.update(suppress_tokens=unnamed)
    model.generation_config.save_pretrained(tmp_path)
    lines = STRIPPED
    forced = {"forced_bos_token_id": numbers["deu_Latn"]}
    wanted = [text.strip() for text in expected(model, tokenizer, lines, **forced)]
    pair = {"source_lang": "eng_Latn", "target_lang": "deu_Latn"}
    assert texts(tmp_path, lines, strategy="AR", **pair) == wanted


@pytest.mark.parametrize("count", [25, 52])
def test_mbart(count: int, tmp_path: Path) -> None:
    model = make_mbart(tmp_path, count=count)
    transformers = import_transformers()
    kind = transformers.MBartTokenizer if count == 25 else transformers.MBart50Tokenizer
    tokenizer = kind.from_pretrained(tmp_path, src_lang="fr_XX")
    lines = STRIPPED
    if count == 25:
        # Unlike the files of published models, this class does not normalise text.
        lines = [unicodedata.normalize("NFKC", line) for line in lines]
        lines = [" ".join(re.split("[\\s\u200b\u2581]+", line)) for line in lines]
    begin = "decoder_start_token_id" if count == 25 else "forced_bos_token_id"
    wanted = expected(model, tokenizer, lines, **{begin: tokenizer.lang_code_to_id["de_DE"]})
    pair = {"source_lang": "fr_XX", "target_lang": "de_DE"}
    assert texts(tmp_path, lines, strategy="AR", **pair) == wanted
    assert texts(tmp_path, lines, drafts="source", batch=4, **pair) == wanted


#: Languages of an NLLB.
NLLB = {"source_lang": "eng_Latn", "target_lang": "deu_Latn"}


@pytest.mark.parametrize(
    ("kind", "name"),
    [("bart", "Bart"), ("mbart", "MBart"), ("mbart-50", "MBart50"), ("nllb", "Nllb")],
)
def test_the_one_file_of_new_versions(kind: str, name: str, tmp_path: Path) -> None:
    """transformers 5 saves a ``tokenizer.json`` and no other vocabulary."""
    make, pair = {**FAMILIES, "nllb": (partial(make_m2m, nllb=True), NLLB)}[kind]
    model = make(tmp_path)
    options = {"extra_special_tokens": [*NLLB.values()]} if kind == "nllb" else {}
    source = {"src_lang": pair["source_lang"]} if pair else {}
    tokenizers = getattr(import_transformers(), f"{name}Tokenizer")
    tokenizer = tokenizers.from_pretrained(tmp_path, **source, **options)
    first = {}
    if pair:
        name = "decoder_start_token_id" if kind == "mbart" else "forced_bos_token_id"
        first[name] = tokenizer.convert_tokens_to_ids(pair["target_lang"])
    again = tmp_path / "again"
    tokenizer.save_pretrained(again)
    model.generation_config.update(suppress_tokens=[len(tokenizer)])
    model.generation_config.save_pretrained(again)
    for file in ("config.json", "model.safetensors"):
        shutil.copy(tmp_path / file, again)
    assert not {"vocab.json", "sentencepiece.bpe.model"} & {x.name for x in again.iterdir()}
    lines = STRIPPED
    wanted = expected(model, tokenizer, lines, **first)
    assert texts(again, lines, strategy="AR", **pair) == wanted
    with pytest.raises(CheckpointError, match="other files of text"):
        write_dictionaries(again, tmp_path / "out", ("en", "de"))
    (again / "tokenizer.json").write_text("{", "utf-8")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        texts(again, lines, **pair)


def test_a_folder_states_the_target(tmp_path: Path) -> None:
    """The language that ``generate`` begins with is the target's."""
    for count, option in ((25, "decoder_start_token_id"), (52, "forced_bos_token_id")):
        folder = tmp_path / str(count)
        model = make_mbart(folder, count=count)
        words = model.config.vocab_size - count - 1
        model.generation_config.update(**{option: words + 2})
        model.generation_config.save_pretrained(folder)
        assert family_of(folder).languages == (None, "de_DE")
        write(folder / "tokenizer_config.json", {"src_lang": "en_XX", "tgt_lang": "fr_XX"})
        assert family_of(folder).languages == ("en_XX", "de_DE")


@pytest.mark.parametrize(
    ("change", "limits"),
    [
        ({"max_length": 12}, {"max_len_b": 10}),
        ({"max_new_tokens": 7}, {"max_len_b": 6}),
        ({"min_length": 9}, {"min_len": 8}),
        ({"repetition_penalty": 1.7}, {"repetition_penalty": 1.7}),
        ({"suppress_tokens": [8, 9, 10, 11]}, {}),
    ],
)
def test_options_of_generation(
    change: dict[str, object], limits: dict[str, object], tmp_path: Path
) -> None:
    model = make_marian(tmp_path)
    model.generation_config.update(**change)
    model.generation_config.save_pretrained(tmp_path)
    tokenizer = import_transformers().MarianTokenizer.from_pretrained(tmp_path)
    assert limits.items() <= vars(Settings.of_model(tmp_path).limits).items()
    assert texts(tmp_path, LINES, strategy="AR") == expected(model, tokenizer, LINES)


def test_options_that_are_not_followed_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
    make_marian(tmp_path)
    ordinary = {
        "num_beams": 1,
        "do_sample": False,
        "no_repeat_ngram_size": 0,
        "eos_token_id": 0,
        "forced_eos_token_id": [0],
        "min_new_tokens": None,
        "sequence_bias": {},
    }
    write(
        tmp_path / "generation_config.json",
        {**ordinary, "length_penalty": 1.0, "num_return": 1, "bad_words_ids": [[5]]},
    )
    texts(tmp_path, LINES[:1])
    assert not caplog.records
    options = {
        "num_beams": 4,
        "do_sample": True,
        "no_repeat_ngram_size": 1,
        "min_new_tokens": 12,
        "eos_token_id": [0, 9],
        "forced_eos_token_id": 9,
        "sequence_bias": {"5": 1},
        "exponential_decay_length_penalty": [5, 1.5],
        "encoder_repetition_penalty": 1.5,
        "forced_bos_token_id": 7,
        "bad_words_ids": [[5, 6]],
    }
    write(tmp_path / "generation_config.json", options)
    texts(tmp_path, LINES[:1])
    warnings = " ".join(record.getMessage() for record in caplog.records)
    for name in options:
        assert name in warnings


def test_a_beam_has_the_folders_number_of_tokens_that_are_not_repeated(tmp_path: Path) -> None:
    make_marian(tmp_path)
    free = texts(tmp_path, LINES, beam=3)
    given = texts(tmp_path, LINES, beam=3, search_options={"no_repeat_ngram_size": 2})
    write(
        tmp_path / "generation_config.json",
        {"max_length": 30, "forced_eos_token_id": 0, "no_repeat_ngram_size": 2},
    )
    assert texts(tmp_path, LINES, beam=3) == given != free
    assert texts(tmp_path, LINES, beam=3, search_options={"no_repeat_ngram_size": 0}) == free
