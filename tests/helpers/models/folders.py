"""Folders as transformers saves them: small random models, and SentencePiece models."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from helpers.page_examples import page_examples
from specdec_plugins.verifiers import families, reference

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def import_transformers() -> ModuleType:
    """Return transformers, or skip the test."""
    pytest.importorskip("safetensors", reason="the extra [hf] is not installed")
    if find_spec("transformers") is None:
        pytest.skip("the extra [hf-test] is not installed")
    module = reference.import_transformers()
    module.logging.set_verbosity_error()
    module.logging.disable_progress_bar()
    return module


LINES = [
    "The quick brown fox jumps over the lazy dog.",
    "A man in a red shirt is riding a bicycle down the street.",
    "Two dogs play in the snow, and nobody sees them!",
    "Ein Mann fährt mit dem Fahrrad über die Straße.",
    "Zwei Hunde spielen im Schnee; niemand sieht sie.",
    "Why not? Because 3.5 is less than 4, said Ann-Marie.",
]
#: Lines with what texts have that models rarely learn.
ODD = [
    "  Two   dogs \t play  ",
    "Two\u00a0dogs, e\u0301le\u0300ve \ufb01ne \u2026 \u00bd",
    "\u4e2d\u6587 is unknown \U0001f600 here",
    "A",
    "snow\u200bman \u2028 line",
    ">> not a code",
    "THE DOG & <the> \\u0020 fox @@ \u2581 x",
]


def make_pieces(folder: Path, name: str, kind: str = "unigram", size: int = 60) -> Path:
    """Train a SentencePiece model on :data:`LINES`."""
    trainer = pytest.importorskip("sentencepiece").SentencePieceTrainer
    text = folder / "text"
    text.write_text("\n".join(LINES * 5), "utf-8")
    options: Any = {
        "model_type": kind,
        "vocab_size": size,
        "hard_vocab_limit": False,
        "minloglevel": 2,
    }
    trainer.train(input=str(text), model_prefix=str(folder / "trained"), **options)
    text.unlink()
    (folder / "trained.vocab").unlink()
    return (folder / "trained.model").rename(folder / name)


def pieces_of(path: Path) -> list[str]:
    """Return the pieces of a model but its special ones."""
    from sentencepiece import SentencePieceProcessor

    model = SentencePieceProcessor(model_file=str(path))
    return [model.id_to_piece(i) for i in range(3, len(model))]


def write(path: Path, value: object) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(value, ensure_ascii=False), "utf-8")


def rewrite(path: Path, **values: object) -> None:
    """Change values of a JSON file, or begin it."""
    write(path, {**(json.loads(path.read_bytes()) if path.exists() else {}), **values})


@torch.no_grad()
def randomise(model: Any, seed: int, embedded: float, crossing: float) -> Any:
    """Draw all weights, for scores without near-ties and outputs that depend on the source.

    ``embedded``, ``crossing``: the deviations of embeddings and of cross-attention's weights.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if "embed_positions" not in name and weight.dim() > 1:
            is_table = "shared" in name or "embed_tokens" in name or "lm_head" in name
            std = embedded if is_table else crossing if "encoder_attn" in name else 0.25
            torch.nn.init.normal_(weight, std=std, generator=generator)
        elif "layer_norm" in name or "bias" in name:
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.2)
    if (bias := getattr(model, "final_logits_bias", None)) is not None:
        torch.nn.init.normal_(bias, std=2, generator=generator)
    return model.eval()


#: Sizes of small networks.
SIZES: dict[str, object] = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
}


def make_marian(folder: Path, seed: int = 1, **options: Any) -> Any:
    """Save a random Marian with a tokenizer; return the model in float64."""
    transformers = import_transformers()
    folder.mkdir(parents=True, exist_ok=True)
    names = pieces_of(make_pieces(folder, "source.spm"))
    (folder / "target.spm").write_bytes((folder / "source.spm").read_bytes())
    separate = not options.get("share_encoder_decoder_embeddings", True)
    vocabulary = {name: i for i, name in enumerate(["</s>", "<unk>", *names, ">>deu<<", "<pad>"])}
    size = len(vocabulary)
    write(folder / "vocab.json", vocabulary)
    if separate:
        # Other numbers, but for PAD's: one token is PAD, and begins targets, on both sides.
        others = ["</s>", "<unk>", *reversed(names), "<extra>", "<pad>"]
        write(folder / "target_vocab.json", {name: i for i, name in enumerate(others)})
        options["decoder_vocab_size"] = size
    tokenizer = {"source_lang": "en", "target_lang": "de", "separate_vocabs": separate}
    write(folder / "tokenizer_config.json", tokenizer)
    special = {"pad_token_id": size - 1, "eos_token_id": 0, "decoder_start_token_id": size - 1}
    base = {"vocab_size": size, "activation_function": "swish", "scale_embedding": True}
    config = transformers.MarianConfig(**{**SIZES, **base, **special, **options})
    model = randomise(transformers.MarianMTModel(config), seed, 0.5, 0.25)
    model.generation_config.bad_words_ids = [[size - 1]]
    model.generation_config.max_length = 30
    model.generation_config.forced_eos_token_id = 0
    model.save_pretrained(folder)
    return model.double()


def make_bart(folder: Path, seed: int = 1, forced: bool = True, **options: object) -> Any:
    """Save a random BART with its BPE of bytes; return the model in float64.

    ``forced``: targets begin with BOS.
    """
    transformers = import_transformers()
    from tokenizers import ByteLevelBPETokenizer

    folder.mkdir(parents=True, exist_ok=True)
    trainer = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer.train_from_iterator(LINES * 5, 320, show_progress=False, special_tokens=special)
    trainer.save_model(str(folder))
    vocabulary = json.loads((folder / "vocab.json").read_text("utf-8"))
    write(folder / "vocab.json", {**vocabulary, "<mask>": len(vocabulary)})
    base = {"vocab_size": len(vocabulary) + 1}
    config = transformers.BartConfig(**{**SIZES, **base, **options})
    first = {"forced_bos_token_id": 0} if forced else {}
    kind = transformers.BartForConditionalGeneration
    return saved_model(kind, config, folder, seed, 1.0, **first)


def saved_model(
    kind: Any, config: Any, folder: Path, seed: int, std: float = 0.7, **generation: int
) -> Any:
    """Save a random model with learned positions; return it in float64."""
    torch.manual_seed(seed)  # of positions
    model = randomise(kind(config), seed, std, std)
    # For outputs of several lengths.
    model.final_logits_bias[0, 2] = 9
    model.generation_config.update(max_length=30, bad_words_ids=[[1]], **generation)
    model.save_pretrained(folder)
    return model.double()


def make_mbart(folder: Path, seed: int = 1, count: int = 25, **options: object) -> Any:
    """Save a random mBART of 25 or 52 languages; return the model in float64."""
    transformers = import_transformers()
    folder.mkdir(parents=True, exist_ok=True)
    names = pieces_of(make_pieces(folder, "sentencepiece.bpe.model"))
    base = {"vocab_size": 4 + len(names) + count + 1}
    if count > 25:
        base["decoder_start_token_id"] = 2
    config = transformers.MBartConfig(**{**SIZES, **base, **options})
    return saved_model(transformers.MBartForConditionalGeneration, config, folder, seed)


def make_plbart(folder: Path, seed: int = 1) -> Any:
    """Save a random PLBart; return the model in float64. docs/extending.md adds the family."""
    transformers = import_transformers()
    defined: dict[str, Any] = {"__name__": "plbart"}
    exec(page_examples()["specdec_plugins/verifiers/plbart.py"], defined)
    families.FAMILIES["plbart"] = defined["PLBart"]
    names = pieces_of(make_pieces(folder, "sentencepiece.bpe.model"))
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    languages = ["__java__", "__python__", "__en_XX__"]
    size = len([*special, *names, *languages, "<mask>"])
    config = transformers.PLBartConfig(**SIZES, vocab_size=size)
    return saved_model(transformers.PLBartForConditionalGeneration, config, folder, seed)


def make_m2m(folder: Path, seed: int = 1, nllb: bool = False, **options: object) -> Any:
    """Save a random M2M-100 or NLLB with the files of a tokenizer; return the model in float64."""
    transformers = import_transformers()
    folder.mkdir(parents=True, exist_ok=True)
    kind, size = ("bpe", 90) if nllb else ("unigram", 60)
    names = pieces_of(make_pieces(folder, "sentencepiece.bpe.model", kind, size))
    words = ["<s>", "<pad>", "</s>", "<unk>", *names]
    if nllb:
        languages = ["deu_Latn", "eng_Latn", "zho_Hans"]
    else:
        languages = [f"__{name}__" for name in ("af", "am", "ar")]
        write(folder / "vocab.json", {word: i for i, word in enumerate(words)})
    write(folder / "special_tokens_map.json", {"additional_special_tokens": languages})
    write(folder / "tokenizer_config.json", {"src_lang": None, "tgt_lang": None})
    base = {"vocab_size": len(words) + len(languages) + 2, "activation_function": "relu"}
    config = transformers.M2M100Config(**{**SIZES, **base, **options})
    model = randomise(transformers.M2M100ForConditionalGeneration(config), seed, 0.15, 0.6)
    model.generation_config.max_length = 30
    model.save_pretrained(folder)
    return model.double()


#: How a folder of a family is made, and its directions.
FAMILIES: dict[str, tuple[Callable[..., Any], dict[str, str]]] = {
    "marian": (make_marian, {}),
    "m2m": (make_m2m, {"source_lang": "am", "target_lang": "ar"}),
    "bart": (make_bart, {}),
    "mbart": (make_mbart, {"source_lang": "en_XX", "target_lang": "de_DE"}),
    "mbart-50": (
        partial(make_mbart, count=52),
        {"source_lang": "en_XX", "target_lang": "de_DE"},
    ),
}
