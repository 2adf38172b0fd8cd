"""Small stand-ins of the Transformers that people have: random weights, as each was saved."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import old_names
import torch
from conftest import make_dictionary, make_task, make_verifier, vary_output
from drafters import flatten
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.dataclass.configs import FairseqConfig
from fairseq.models.transformer_align import TransformerAlignModel
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from omegaconf import OmegaConf

from specdec_plugins.host.packed_encoder import use_plain_encoder

PRE_NORM = {"encoder_normalize_before": True, "decoder_normalize_before": True}
JOINT = {"share_all_embeddings": True}
OUTPUT_TIED = {"share_decoder_input_output_embed": True}


@dataclass(frozen=True)
class StandIn:
    """A kind of checkpoint."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Options of the Transformer."""
    changes: tuple[Callable[..., Any], ...] = ()
    """Of :mod:`old_names`, to its weights."""
    arch: str = "transformer"
    options: dict[str, Any] = field(default_factory=dict)
    """Saved beside those of the Transformer."""
    separate: bool = False
    """Whether source and target have dictionaries of their own."""
    before_cfg: bool = False
    seed: int = 7
    """One with which it says more than a word or two."""

    @property
    def dictionaries(self) -> tuple[Dictionary, Dictionary]:
        return make_dictionary(20), make_dictionary(26 if self.separate else 20)

    def task(self) -> TranslationTask:
        config = TranslationConfig(source_lang="en", target_lang="de")
        return TranslationTask(config, *self.dictionaries)

    def save(self, path: Path) -> Path:
        """Write it as fairseq would have; so also its dictionaries, beside it."""
        source, target = self.dictionaries
        task = make_task(source)
        task.target_dictionary = target
        model = vary_output(make_verifier(task, seed=self.seed, **self.settings)).float()
        state: dict[str, Any] = {
            "args": None,
            "cfg": {
                **OmegaConf.to_container(OmegaConf.structured(FairseqConfig), enum_to_str=True),
                "model": Namespace(**{**flatten(model.args), **self.options, "arch": self.arch}),
                "task": {"_name": "translation", "source_lang": "en", "target_lang": "de"},
            },
            "model": model.state_dict(),
            "optimizer_history": [
                {"num_updates": 7, "optimizer_name": "FairseqAdam", "lr_scheduler_state": {}}
            ],
            "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}},
            "last_optimizer_state": {"state": {0: {"step": torch.tensor(1.0)}}},
        }
        state["cfg"]["model"]._name = self.arch
        for change in self.changes:
            state["model"] = change(state["model"])
        if self.before_cfg:
            state = old_names.before_cfg(state)
        torch.save(state, path, _use_new_zipfile_serialization=not self.before_cfg)
        for language, dictionary in zip(("en", "de"), (source, target)):
            dictionary.save(str(path.parent / f"dict.{language}.txt"))
        return path


def read_by_fairseq(path: Path, task: TranslationTask) -> Any:
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


FUSED = (old_names.fused,)
WIDE = {"encoder_ffn_embed_dim": 64, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
STAND_INS: dict[str, StandIn] = {
    "modern": StandIn(),
    "fused, joint": StandIn(JOINT, FUSED, before_cfg=True),
    "fused, float16": StandIn(JOINT, (*FUSED, old_names.half)),
    "fused, numbered norms": StandIn(
        {}, (*FUSED, old_names.numbered_norms, old_names.with_positions), before_cfg=True
    ),
    "fused, embed_out, separate": StandIn({}, FUSED, separate=True, before_cfg=True),
    "fused, tied, separate": StandIn(OUTPUT_TIED, FUSED, separate=True),
    "no versions": StandIn(PRE_NORM, (old_names.without_versions,), seed=4),
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
    "output dim": StandIn({"decoder_output_dim": 8}, options={"decoder_output_dim": "8"}),
}
