"""Small stand-ins of the Transformers that people have: random weights, as each was saved."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from conftest import make_dictionary, make_task, make_verifier, vary_output
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.dataclass.configs import FairseqConfig
from fairseq.models.transformer import TransformerModelBase
from fairseq.models.transformer_align import TransformerAlignModel
from fairseq.tasks import FairseqTask
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from fairseq.tasks.translation_multi_simple_epoch import TranslationMultiSimpleEpochTask
from omegaconf import OmegaConf
from torch import Tensor

from helpers.models.drafters import flatten, trainer_state
from specdec_plugins.host.checkpoints import use_plain_encoder
from specdec_plugins.host.fairseq_types import Sample
from specdec_plugins.tasks.translation_specdec import (
    TranslationSpecdecConfig,
    TranslationSpecdecTask,
)

NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}

Weights = dict[str, Tensor]


def fused(weights: Weights) -> Weights:
    """One matrix of queries, keys and values in each attention: until November 2019. There was no
    ``output_projection`` yet: a table of its own was called ``embed_out``."""
    old = dict(weights)
    for name in weights:
        if match := re.fullmatch(r"(.*_attn)\.q_proj\.(weight|bias)", name):
            parts = [old.pop(f"{match[1]}.{part}_proj.{match[2]}") for part in "qkv"]
            old[f"{match[1]}.in_proj_{match[2]}"] = torch.cat(parts)
    output = old.pop("decoder.output_projection.weight")
    if not torch.equal(output, old["decoder.embed_tokens.weight"]):
        old["decoder.embed_out"] = output
    return old


def numbered_norms(weights: Weights) -> Weights:
    """Layer norms by number, as in the first Transformers."""

    def rename(name: str) -> str:
        match = re.fullmatch(r"(encoder|decoder)(\.layers\.\d+)\.(\w+layer_norm)\.(\w+)", name)
        if match is None:
            return name
        side, layer, norm, kind = match.groups()
        return f"{side}{layer}.layer_norms.{NORMS[side].index(norm)}.{kind}"

    return {rename(name): tensor for name, tensor in weights.items()}


def with_positions(weights: Weights) -> Weights:
    """The tables of sinusoidal positions, which were saved, too."""
    tables = {f"{side}.embed_positions.weights": torch.zeros(66, 16) for side in NORMS}
    return {**weights, **tables}


def without_versions(weights: Weights) -> Weights:
    """No ``version``: then there was no norm after the last layer, either."""
    kinds = ("version", "layer_norm.weight", "layer_norm.bias")
    gone = {f"{side}.{kind}" for side in NORMS for kind in kinds}
    return {name: tensor for name, tensor in weights.items() if name not in gone}


def half(weights: Weights) -> Weights:
    """Floating point numbers in float16."""
    return {n: t.half() if t.is_floating_point() else t for n, t in weights.items()}


def before_cfg(state: dict[str, Any]) -> dict[str, object]:
    """All options of a command line in one namespace: until version 0.10.1."""
    args = state["cfg"]["model"]
    task = state["cfg"]["task"]
    for name, value in (task if isinstance(task, dict) else vars(task)).items():
        setattr(args, "task" if name == "_name" else name, value)
    del args._name
    return {**state, "args": args, "cfg": None}


PRE_NORM = {"encoder_normalize_before": True, "decoder_normalize_before": True}
JOINT = {"share_all_embeddings": True}
OUTPUT_TIED = {"share_decoder_input_output_embed": True}


@dataclass(frozen=True)
class StandIn:
    """A kind of checkpoint."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Options of the Transformer."""
    changes: tuple[Callable[..., object], ...] = ()
    """Functions that age its weights."""
    arch: str = "transformer"
    options: dict[str, Any] = field(default_factory=dict)
    """Saved beside those of the Transformer."""
    separate: bool = False
    """True if source and target have dictionaries of their own."""
    before_cfg: bool = False
    languages: str = ""
    """Flags of a multilingual one's task."""
    seed: int = 7
    """A seed with which it says more than a word or two."""

    @property
    def dictionaries(self) -> tuple[Dictionary, Dictionary]:
        return make_dictionary(20), make_dictionary(26 if self.separate else 20)

    def task(self) -> TranslationSpecdecTask:
        config = TranslationSpecdecConfig(source_lang="en", target_lang="de")
        return TranslationSpecdecTask(config, *self.dictionaries)

    def stock_task(self, folder: Path) -> FairseqTask:
        """The task that stock fairseq has for it, with the dictionaries of a folder."""
        if self.languages:
            return multilingual_task(folder, self.languages)
        return TranslationTask(
            TranslationConfig(source_lang="en", target_lang="de"), *self.dictionaries
        )

    def save(self, path: Path) -> Path:
        """Write it as fairseq would have; so also its dictionaries, beside it."""
        for language, dictionary in zip(("en", "de"), self.dictionaries):
            dictionary.save(str(path.parent / f"dict.{language}.txt"))
        stock = self.stock_task(path.parent)
        task = make_task(stock.source_dictionary)
        task.target_dictionary = stock.target_dictionary
        model = vary_output(make_verifier(task, seed=self.seed, **self.settings)).float()
        named = {"arch": self.arch, "_name": self.arch}
        cfg: Any = OmegaConf.to_container(OmegaConf.structured(FairseqConfig), enum_to_str=True)
        cfg["model"] = Namespace(**{**flatten(model.args), **self.options, **named})
        state = trainer_state({**cfg, "task": saved_task(stock)}, model)
        for change in self.changes:
            state["model"] = change(state["model"])
        if self.before_cfg:
            state = before_cfg(state)
        torch.save(state, path, _use_new_zipfile_serialization=not self.before_cfg)
        return path


def multilingual_task(folder: Path, flags: str) -> TranslationMultiSimpleEpochTask:
    """Stock's own, from its own flags."""
    parser = ArgumentParser()
    TranslationMultiSimpleEpochTask.add_args(parser)
    args = parser.parse_args([str(folder), "-s", "en", "-t", "de", *flags.split()])
    args.task, args.seed, args.dataset_impl = "translation_multi_simple_epoch", 1, None
    return TranslationMultiSimpleEpochTask.setup_task(args)


def saved_task(stock: FairseqTask) -> Any:
    """Return the options of a task in a checkpoint; a multilingual training chooses no pair."""
    if isinstance(stock, TranslationTask):
        return {"_name": "translation", "source_lang": "en", "target_lang": "de"}
    return Namespace(**{**vars(stock.args), "source_lang": None, "target_lang": None})


def begun(stock: FairseqTask, batch: Sample) -> tuple[Any, dict[str, Any]]:
    """Return a batch as stock's task has it, and the beginning of its search."""
    if isinstance(stock, TranslationTask):
        return batch, {}
    padded = batch["net_input"]["src_tokens"]
    sources = [row[row != stock.source_dictionary.pad()] for row in padded]
    pairs = stock.build_dataset_for_inference(sources, [len(row) for row in sources])
    sample = pairs.collater([pairs[i] for i in range(len(sources))])
    # By length, in fairseq.
    order = sample["id"].argsort()
    sample = {"id": sample["id"][order], "net_input": sample["net_input"]}
    sample["net_input"] = {name: sample["net_input"][name][order] for name in batch["net_input"]}
    search = Namespace(generate=lambda models, sample, **begin: begin)
    begin = stock.inference_step(search, [], sample)
    return sample, {name: value for name, value in begin.items() if value is not None}


def read_by_fairseq(path: Path, task: FairseqTask) -> TransformerModelBase:
    """The model as stock fairseq reads it, which has to be told what a name unknown to it is."""
    state = torch.load(path, weights_only=False)
    config = state["args"] or state["cfg"]["model"]
    if config.arch != "transformer_align":
        config.arch = config._name = "transformer"
    copy = path.with_name("stock.pt")
    torch.save(state, copy)
    (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task([str(copy)], task=task)
    aligns = isinstance(model, TransformerAlignModel)
    assert aligns == (config.arch == "transformer_align")
    use_plain_encoder(model)  # which fairseq 0.12.2 needs where there is padding
    return model.double().eval().requires_grad_(False)


FUSED = (fused,)
WIDE = {"encoder_ffn_embed_dim": 64, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
STAND_INS: dict[str, StandIn] = {
    "modern": StandIn(),
    "fused, joint": StandIn(JOINT, FUSED, before_cfg=True),
    "fused, float16": StandIn(JOINT, (*FUSED, half)),
    "fused, numbered norms": StandIn({}, (*FUSED, numbered_norms, with_positions), before_cfg=True),
    "fused, embed_out, separate": StandIn({}, FUSED, separate=True, before_cfg=True),
    "fused, tied, separate": StandIn(OUTPUT_TIED, FUSED, separate=True),
    "no versions": StandIn(PRE_NORM, (without_versions,), seed=4),
    "unknown, pre-norm, gelu": StandIn(
        {**PRE_NORM, "activation_fn": "gelu"},
        arch="transformer_18_18",
        separate=True,
        before_cfg=True,
    ),
    "unknown, post-norm": StandIn({}, FUSED, "transformer_4x"),
    "align": StandIn(arch="transformer_align", options={"alignment_layer": 1}),
    "12 and 1 layers": StandIn({"encoder_layers": 12, "decoder_layers": 1}, seed=8),
    "unequal widths": StandIn({**WIDE, **OUTPUT_TIED}, separate=True),
    "learned positions": StandIn({"encoder_learned_pos": True, "decoder_learned_pos": True}),
    "norm on embeddings": StandIn({"layernorm_embedding": True, **PRE_NORM}),
    "layer drop": StandIn({"encoder_layerdrop": 0.5, "decoder_layerdrop": 0.5}),
    "layers to keep": StandIn(
        {"encoder_layers": 3, "decoder_layers": 3},
        options={"encoder_layers_to_keep": "0,2", "decoder_layers_to_keep": "1,2"},
    ),
    "multilingual": StandIn(
        PRE_NORM,
        languages="--lang-pairs en-de,en-fr --encoder-langtok src --decoder-langtok",
        before_cfg=True,
        seed=15,
    ),
    "multilingual, in place of EOS": StandIn(
        languages="--langs fr,en,de --lang-pairs en-de --encoder-langtok tgt --decoder-langtok "
        "--lang-tok-style mbart --lang-tok-replacing-bos-eos",
        separate=True,
        seed=14,
    ),
    "output dim": StandIn({"decoder_output_dim": 8}, options={"decoder_output_dim": "8"}),
}
