"""Folders of random models, against transformers itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from fairseq.models.transformer import TransformerModelBase
from fairseq.modules import gelu
from helpers.models.drafters import make_causal, save_checkpoint
from helpers.models.folders import make_bart, make_m2m, make_marian, make_mbart, make_plbart
from torch import Tensor

from specdec_plugins.checkpoints.multilingual import LanguageTokens
from specdec_plugins.checkpoints.pair import load_verifier
from specdec_plugins.decoding.controllers.simple import Tree
from specdec_plugins.inference import Settings, load_translator
from specdec_plugins.inference.loading import build_task
from specdec_plugins.verifiers.families import family_of

#: Sources a model.
SOURCES = 40
#: New tokens of transformers at most, by the folders' ``generation_config.json``.
LONGEST = 29
#: Language flags by the kind of the folder.
LANGUAGES = {
    "m2m": ("am", "af"),
    "nllb": ("zho_Hans", "eng_Latn"),
    "mbart": ("en_XX", "de_DE"),
    "marian": (None, None),
    "bart": (None, None),
    "plbart": ("java", "python"),
}
DEEP = {"encoder_layers": 3, "decoder_layers": 1, "decoder_attention_heads": 8}
WIDE = {"d_model": 48, "encoder_ffn_dim": 40, "decoder_ffn_dim": 96}
Make = Callable[..., Any]
#: The kind of a folder, and how it is made.
MODELS: dict[str, tuple[str, Make]] = {
    "marian": ("marian", partial(make_marian, seed=1)),
    "marian-untied": ("marian", partial(make_marian, seed=2, tie_word_embeddings=False, **DEEP)),
    "marian-two-vocabularies": (
        "marian",
        partial(make_marian, seed=3, share_encoder_decoder_embeddings=False, **WIDE),
    ),
    "marian-relu-unscaled": (
        "marian",
        partial(make_marian, seed=4, scale_embedding=False, activation_function="relu"),
    ),
    "m2m": ("m2m", partial(make_m2m, seed=5)),
    "m2m-untied-gelu": (
        "m2m",
        partial(make_m2m, seed=6, tie_word_embeddings=False, activation_function="gelu", **WIDE),
    ),
    "m2m-deep-unscaled": ("m2m", partial(make_m2m, seed=7, scale_embedding=False, **DEEP)),
    "nllb": ("nllb", partial(make_m2m, seed=8, nllb=True)),
    "bart": ("bart", partial(make_bart, seed=1)),
    "bart-untied-free": (
        "bart",
        partial(make_bart, seed=2, tie_word_embeddings=False, forced=False, **WIDE),
    ),
    "bart-scaled-deep": ("bart", partial(make_bart, seed=3, scale_embedding=True, **DEEP)),
    "mbart-25": ("mbart", partial(make_mbart, seed=1)),
    "mbart-25-scaled-untied": (
        "mbart",
        partial(make_mbart, seed=2, scale_embedding=True, tie_word_embeddings=False, **WIDE),
    ),
    "mbart-50": ("mbart", partial(make_mbart, seed=3, count=52)),
    "page's example": ("plbart", make_plbart),
    "mbart-50-relu-deep": (
        "mbart",
        partial(make_mbart, seed=4, count=52, activation_function="relu", **DEEP),
    ),
}


class Made(NamedTuple):
    """A folder, transformers' model of it in float64, and its greedy output."""

    folder: Path
    model: Any
    #: Settings of its languages.
    languages: dict[str, str | None]
    #: Sources in fairseq's numbers, the language and EOS included.
    sources: list[Tensor]
    #: The output for each source, in fairseq's numbers, without the start and what follows EOS.
    outputs: list[list[int]]


#: One of each family and form; the others are slow.
QUICK = (
    "marian-two-vocabularies",
    "m2m-untied-gelu",
    "nllb",
    "bart",
    "mbart-25",
    "mbart-50",
    "page's example",
)


@pytest.fixture(
    scope="module",
    params=[pytest.param(x, marks=[] if x in QUICK else [pytest.mark.slow]) for x in MODELS],
)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    kind, make = MODELS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    model = make(folder)
    source, target = LANGUAGES[kind]
    languages = {"source_lang": source, "target_lang": target}
    tokens = load(folder, languages, strategy="AR", engine="eager").codec.tokens
    orders = [family_of(folder).order(side) for side in ("source", "target")]
    generator = torch.Generator().manual_seed(9)
    sources = []
    for _ in range(SOURCES):
        length = int(torch.randint(1, 12, (1,), generator=generator))
        words = torch.randint(4, 40, (length,), generator=generator)
        sources.append(tokens.of_source(torch.cat([words, torch.tensor([2])])))
    return Made(folder, model, languages, sources, reference(model, sources, orders, tokens))


def load(folder: Path, languages: dict[str, str | None], **options: Any) -> Any:
    return load_translator(Settings.of_model(folder, **{**languages, **options}))


@torch.no_grad()
def reference(
    model: TransformerModelBase,
    sources: list[Tensor],
    orders: list[list[int]],
    tokens: LanguageTokens,
) -> list[list[int]]:
    """Return transformers' greedy output."""
    source, target = (torch.tensor(order) for order in orders)
    pad, width = model.config.pad_token_id, max(map(len, sources))
    ids = torch.full((len(sources), width), pad)
    for row, words in zip(ids, sources):
        row[: len(words)] = source[words]
    begin: dict[str, int] = {}
    if tokens.begin is not None:
        begin["decoder_start_token_id"] = int(target[tokens.begin])
    elif tokens.target is not None:
        begin["forced_bos_token_id"] = int(target[tokens.target])
    outputs = model.generate(
        input_ids=ids,
        attention_mask=ids.ne(pad).long(),
        num_beams=1,
        do_sample=False,
        bad_words_ids=[[pad]],
        **begin,
    )
    numbers = {int(number): index for index, number in enumerate(target)}
    rows = [[numbers[token] for token in row] for row in outputs[:, 1:].tolist()]
    return [row[: row.index(2) + 1] if 2 in row else row for row in rows]


def decoded(made: Made, batch: int, **options: object) -> list[list[int]]:
    """Return our output, cut as transformers cuts it."""
    translator = load(made.folder, made.languages, batch=batch, **options)
    tokens = translator.codec.tokens
    outputs = []
    for start in range(0, len(made.sources), batch):
        rows = made.sources[start : start + batch]
        width = max(map(len, rows))
        ids = torch.full((len(rows), width), 1)
        for row, source in zip(ids, rows):
            row[width - len(source) :] = source
        sample = {
            "id": torch.arange(len(rows)),
            "net_input": {"src_tokens": ids, "src_lengths": torch.tensor(list(map(len, rows)))},
        }
        forced = torch.tensor(tokens.forced).expand(len(rows), -1) if tokens.forced else None
        results = translator.generator.generate(
            [], sample, prefix_tokens=forced, bos_token=tokens.begin
        )
        outputs += [hypotheses[0]["tokens"].tolist()[:LONGEST] for hypotheses in results]
    return outputs


@pytest.mark.parametrize("batch", [1, 8])
def test_greedy_output_is_transformers(made: Made, batch: int) -> None:
    assert len(set(map(tuple, made.outputs))) > SOURCES / 5  # they depend on their sources
    plain = {"engine": "eager", "precision": "float64"}
    assert decoded(made, batch, strategy="AR", **plain) == made.outputs


@pytest.mark.parametrize("drafts", ["copy", "source"])
def test_drafts_do_not_change_it(made: Made, drafts: str) -> None:
    plain = {"engine": "eager", "precision": "float64", "drafter_precision": "float32"}
    assert decoded(made, 2, drafts=drafts, **plain) == made.outputs


def test_a_made_drafter_does_not_change_it(made: Made, tmp_path: Path) -> None:
    """A random one, which shares the verifier's encoder and features."""
    task = build_task(Settings.of_model(made.folder, **made.languages))
    task.cfg.block_size = 4
    channels = load_verifier(str(made.folder), task).encoder.embed_tokens.embedding_dim
    widths = {f"{name}_embed_dim": channels for name in ("encoder", "decoder", "verifier")}
    shared = {"share_verifier_encoder": True, "verifier_features": True}
    drafter = make_causal(task, **widths, **shared)
    path = save_checkpoint(tmp_path / "drafter.pt", drafter, task)
    plain = {"engine": "eager", "precision": "float64", "path": str(path)}
    assert decoded(made, 8, controller=Tree(tree_nodes=6), **plain) == made.outputs


def test_the_default_engine(made: Made) -> None:
    pytest.importorskip("onnxruntime", reason="the extra [int8] is not installed")
    assert decoded(made, 1, strategy="AR") == made.outputs
    assert decoded(made, 1, drafts="copy") == made.outputs
    # By the writer, or by ONNX Runtime, nothing verifies it.
    outputs = decoded(made, 1, strategy="AR", precision="int8")
    assert len(outputs) == SOURCES


@torch.no_grad()
def test_logits_are_transformers(made: Made, exact_softmax: None) -> None:
    options = {"engine": "eager", "precision": "float64", "strategy": "AR"}
    translator = load(made.folder, made.languages, **options)
    model, begin = translator.verifier, translator.codec.tokens.begin
    for layer in (*model.encoder.layers, *model.decoder.layers):
        if layer.activation_fn is gelu:  # fairseq's computes in float32
            layer.activation_fn = torch.nn.functional.gelu
    source, target = (torch.tensor(family_of(made.folder).order(x)) for x in ("source", "target"))
    start = made.model.generation_config.decoder_start_token_id if begin is None else target[begin]
    real = target >= 0
    for tokens, output in zip(made.sources[:10], made.outputs):
        begun = torch.tensor([[2 if begin is None else begin, *output[:-1]]])
        logits = model(tokens[None], torch.tensor([len(tokens)]), begun)[0][0]
        ids = target[begun]
        ids[0, 0] = start
        expected = made.model(input_ids=source[tokens][None], decoder_input_ids=ids).logits[0]
        difference = (logits[:, real] - expected[:, target[real]]).abs().max()
        assert difference < 1e-5


@pytest.mark.parametrize("kind", ["marian", "m2m"])
@pytest.mark.parametrize("form", ["half", "bfloat16", "bin", "shards"])
def test_other_files_of_weights(kind: str, form: str, tmp_path: Path) -> None:
    """Weights in 16 bits, in a pickle, and in shards are the same weights."""
    make = {"marian": make_marian, "m2m": make_m2m}[kind]
    model = make(tmp_path).float()
    model = model.bfloat16() if form == "bfloat16" else model.half()
    weights = model.float().state_dict()
    (tmp_path / "model.safetensors").unlink()
    if form == "bin":
        # As older folders have it, with all tables.
        torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    else:
        size = "20KB" if form == "shards" else "1GB"
        saved = model.bfloat16() if form == "bfloat16" else model.half()
        saved.save_pretrained(tmp_path, max_shard_size=size)
    if form == "shards":
        assert len([*tmp_path.glob("model-*.safetensors")]) > 2
    source, target = LANGUAGES[kind]
    languages = {"source_lang": source, "target_lang": target}
    verifier = load(tmp_path, languages, strategy="AR", engine="eager").verifier
    assert next(verifier.parameters()).dtype == torch.float32
    layer = verifier.decoder.layers[1].fc1.weight
    assert torch.equal(layer, weights["model.decoder.layers.1.fc1.weight"])
