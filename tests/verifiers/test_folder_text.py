"""Text to text: by our commands' settings, as by transformers' tokenizers and models."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from folders import LINES, ODD, import_transformers, make_m2m, make_marian, write

from specdec_plugins.files.lines import Line
from specdec_plugins.inference import Settings, load_translator
from specdec_plugins.verifiers.families import family_of

EXACT = {"engine": "eager", "precision": "float64"}


@torch.no_grad()
def expected(model: Any, tokenizer: Any, lines: list[str], **options: Any) -> list[str]:
    """Return the lines as transformers alone translates them, by ``generation_config.json``."""
    texts = []
    for line in lines:
        output = model.generate(**tokenizer([line], return_tensors="pt"), **options)
        texts.append(tokenizer.decode(output[0], skip_special_tokens=True))
    return texts


def texts(folder: Path, lines: list[str], **options: Any) -> list[str]:
    translator = load_translator(Settings.of_model(folder, **{**EXACT, **options}))
    return [translation.text for translation in translator.translate(lines)]


def test_marian(tmp_path: Path) -> None:
    model = make_marian(tmp_path)
    tokenizer = import_transformers().MarianTokenizer.from_pretrained(tmp_path)
    # The first token of a text may be the target's language.
    lines = [*LINES, *ODD, ">>deu<< The dog", ">>deu<<The dog", ">>fra<< The dog"]
    wanted = expected(model, tokenizer, lines)
    assert len(set(wanted)) > len(lines) / 2
    assert texts(tmp_path, lines, strategy="AR") == wanted
    assert texts(tmp_path, lines, drafts="source", batch=4) == wanted


def test_two_vocabularies(tmp_path: Path) -> None:
    model = make_marian(tmp_path, share_encoder_decoder_embeddings=False)
    tokenizer = import_transformers().MarianTokenizer.from_pretrained(tmp_path)
    assert texts(tmp_path, LINES, strategy="AR") == expected(model, tokenizer, LINES)


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


def test_nllb(tmp_path: Path) -> None:
    make_m2m(tmp_path, nllb=True)
    options = {"source_lang": "eng_Latn", "target_lang": "deu_Latn", "strategy": "AR", **EXACT}
    codec = load_translator(Settings.of_model(tmp_path, **options)).codec
    tokenizer = import_transformers().NllbTokenizer.from_pretrained(tmp_path)
    numbers = family_of(tmp_path).order("source")
    # It is built from the SentencePiece model alone, and knows no languages.
    for line in [*LINES, *(line.strip() for line in ODD)]:
        ids = [numbers[token] for token in codec.encode(Line(1, line))]
        assert ids[1:] == tokenizer(line).input_ids[1:]
        assert codec.source[codec.encode(Line(1, line))[0]] == "__eng_Latn__"


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
    change: dict[str, Any], limits: dict[str, Any], tmp_path: Path
) -> None:
    model = make_marian(tmp_path)
    model.generation_config.update(**change)
    model.generation_config.save_pretrained(tmp_path)
    tokenizer = import_transformers().MarianTokenizer.from_pretrained(tmp_path)
    settings = Settings.of_model(tmp_path)
    assert limits.items() <= vars(settings.limits).items()
    plain = texts(tmp_path, LINES, strategy="AR")
    assert plain == expected(model, tokenizer, LINES)


def test_options_that_are_not_followed_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_marian(tmp_path)
    options = {"num_beams": 4, "no_repeat_ngram_size": 3, "bad_words_ids": [[5, 6]]}
    write(tmp_path / "generation_config.json", {**options, "length_penalty": 1.0, "num_return": 1})
    Settings.of_model(tmp_path)
    (warning,) = [record.getMessage() for record in caplog.records]
    for name in options:
        assert name in warning
