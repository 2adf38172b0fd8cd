"""Text to text: by our commands' settings, as by transformers' tokenizers and models."""

from __future__ import annotations

import re
import shutil
import unicodedata
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
    lines = [*LINES, *(line.strip() for line in ODD)]
    forced = {"forced_bos_token_id": numbers["deu_Latn"]}
    wanted = [text.strip() for text in expected(model, tokenizer, lines, **forced)]
    assert len(set(wanted)) > len(lines) / 2
    pair = {"source_lang": "eng_Latn", "target_lang": "deu_Latn"}
    assert texts(tmp_path, lines, strategy="AR", **pair) == wanted


def test_bart(tmp_path: Path) -> None:
    model = make_bart(tmp_path)
    tokenizer = import_transformers().BartTokenizer.from_pretrained(tmp_path)
    lines = [*LINES, *(line.strip() for line in ODD)]
    wanted = expected(model, tokenizer, lines)
    assert len(set(wanted)) > len(lines) / 2
    assert texts(tmp_path, lines, strategy="AR") == wanted
    assert texts(tmp_path, lines, drafts="source", batch=4) == wanted


@pytest.mark.parametrize("count", [25, 52])
def test_mbart(count: int, tmp_path: Path) -> None:
    model = make_mbart(tmp_path, count=count)
    transformers = import_transformers()
    kind = transformers.MBartTokenizer if count == 25 else transformers.MBart50Tokenizer
    tokenizer = kind.from_pretrained(tmp_path, src_lang="fr_XX")
    lines = [*LINES, *(line.strip() for line in ODD)]
    if count == 25:
        # Unlike the files of published models, this class does not normalise text.
        lines = [unicodedata.normalize("NFKC", line) for line in lines]
        lines = [" ".join(re.split("[\\s\u200b\u2581]+", line)) for line in lines]
    begin = "decoder_start_token_id" if count == 25 else "forced_bos_token_id"
    wanted = expected(model, tokenizer, lines, **{begin: tokenizer.lang_code_to_id["de_DE"]})
    assert len(set(wanted)) > len(lines) / 2
    pair = {"source_lang": "fr_XX", "target_lang": "de_DE"}
    assert texts(tmp_path, lines, strategy="AR", **pair) == wanted
    assert texts(tmp_path, lines, drafts="source", batch=4, **pair) == wanted


@pytest.mark.parametrize("kind", ["bart", "mbart", "mbart-50", "nllb"])
def test_the_one_file_of_new_versions(kind: str, tmp_path: Path) -> None:
    """transformers 5 saves a ``tokenizer.json`` and no other vocabulary."""
    transformers = import_transformers()
    make, pair = FAMILIES["m2m" if kind == "nllb" else kind]
    model = make(tmp_path, nllb=True) if kind == "nllb" else make(tmp_path)
    names = {"bart": "Bart", "mbart": "MBart", "mbart-50": "MBart50", "nllb": "Nllb"}
    options = {"extra_special_tokens": ["deu_Latn", "eng_Latn"]} if kind == "nllb" else {}
    pair = {"source_lang": "eng_Latn", "target_lang": "deu_Latn"} if kind == "nllb" else pair
    source = {"src_lang": pair["source_lang"]} if pair else {}
    kinds = getattr(transformers, f"{names[kind]}Tokenizer")
    tokenizer = kinds.from_pretrained(tmp_path, **source, **options)
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
    lines = [*LINES, *(line.strip() for line in ODD)]
    wanted = expected(model, tokenizer, lines, **first)
    assert len(set(wanted)) > len(lines) / 2
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
