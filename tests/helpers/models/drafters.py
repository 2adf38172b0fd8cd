"""Tiny random drafters, checkpoint files, and the published pair where its files are at hand."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from conftest import (
    ONE_LAYER,
    SIZES,
    make_dictionary,
    make_task,
    make_verifier,
    randomise,
    vary_output,
)
from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from fairseq.tasks import FairseqTask
from torch import Tensor

from specdec_plugins.checkpoints import multilingual
from specdec_plugins.checkpoints.loading import KEY, fingerprints
from specdec_plugins.checkpoints.pair import init_encoder_from, load_drafter
from specdec_plugins.data.block_mask import Blocks
from specdec_plugins.host.checkpoints import use_plain_encoder
from specdec_plugins.host.fairseq_types import Sample
from specdec_plugins.models.block_causal import BlockCausalConfig, BlockCausalDrafter
from specdec_plugins.models.block_nat import BlockDrafter
from specdec_plugins.models.drafter import Drafter, DrafterOutput
from specdec_plugins.models.lattice import SlotScores
from specdec_plugins.tasks.specdec_config import TranslationSpecdecConfig
from specdec_plugins.tasks.translation_specdec import TranslationSpecdecTask

PUBLISHED = Path(os.environ.get("SPECDEC_PUBLISHED_PAIR") or os.devnull)
needs_published = pytest.mark.skipif(
    not PUBLISHED.is_dir(), reason="SPECDEC_PUBLISHED_PAIR names no folder of the published pair"
)

CAUSAL: dict[str, dict[str, object]] = {
    "plain": {},
    "learned": {"decoder_learned_pos": True},
    "pre-norm": {"decoder_normalize_before": True, "encoder_normalize_before": True},
    "gelu": {"activation_fn": "gelu", "share_all_embeddings": True},
    "unscaled": {"no_scale_embedding": True, "share_decoder_input_output_embed": True},
    "shared encoder": {"share_verifier_encoder": True},
    "features": {"verifier_features": True},
    "all of the verifier": {
        "share_verifier_encoder": True,
        "verifier_features": True,
        "verifier_feature_layers": "2,1",
    },
}
"""Kinds of ``block_causal`` drafters."""


def make_block(task: Namespace | None = None, seed: int = 0, **overrides: Any) -> BlockDrafter:
    """A random ``block`` drafter in float64."""
    task = task or make_task()
    model = BlockDrafter.build_model(block_args(**overrides), task)
    return randomise(_with_encoder(model, task, overrides), seed)


def block_args(**overrides: object) -> Namespace:
    return Namespace(**{**SIZES, "src_embedding_copy": True, **overrides})


def _with_encoder(model: Drafter, task: Namespace, options: dict[str, Any]) -> Any:
    """The drafter, begun as the task begins it."""
    if path := options.get("init_encoder_from"):
        init_encoder_from(model.encoder, path, task, model.exact_encoder)
    return model


def make_causal(
    task: Namespace | None = None, seed: int = 0, spread: bool = True, **overrides: object
) -> BlockCausalDrafter:
    """A ``block_causal`` drafter in float64, for the task's block size.

    Random, or with ``spread`` False as training would begin with it.
    """
    torch.manual_seed(seed)
    task = task or make_task()
    settings = {**SIZES, "block_size": task.cfg.block_size, "verifier_embed_dim": 16, **overrides}
    model = BlockCausalDrafter.build_model(BlockCausalConfig(**settings), task)
    use_plain_encoder(_with_encoder(model, task, overrides))
    model = randomise(model, seed) if spread else model.double().eval()
    if task.verifier is not None:
        model.attach_verifier(task.verifier)
    return model


def make_targets(lengths: list[int], vocabulary: int = 24, seed: int = 0, pad: int = 1) -> Tensor:
    """Random targets of these lengths (EOS included), right-padded."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.full((len(lengths), max(lengths)), pad)
    for row, length in enumerate(lengths):
        tokens[row, : length - 1] = torch.randint(4, vocabulary, (length - 1,), generator=generator)
        tokens[row, length - 1] = 2
    return tokens


def batch_of(
    source: torch.Tensor, lengths: torch.Tensor, target: torch.Tensor, cuts: torch.Tensor
) -> Sample:
    """A batch for a training pass."""
    net_input = {"src_tokens": source, "src_lengths": lengths}
    seeds = torch.randint(2**63 - 1, (len(target),))
    noise = {"cuts": cuts, "seeds": seeds, "glancing_ratio": 0.0}
    return {"net_input": net_input, "target": target, **noise}


def slot_logits(output: DrafterOutput) -> torch.Tensor:
    """``(batch, blocks, slots, vocab)`` logits of a training pass, 0 in slots without a target."""
    (logits,) = output.values
    spread = logits.new_zeros(*output.blocks.scored.shape, logits.size(-1))
    spread[output.blocks.scored] = logits
    return spread


def slot_scores(model: Drafter, x: torch.Tensor, last: torch.Tensor) -> SlotScores:
    """What the slots with states ``x`` may hold after the tokens ``last``."""
    scorer = model.decoder.slot_scorer()
    return scorer.read(*scorer(x, last))


def every_slots_logits(
    model: Drafter, source: Tensor, lengths: Tensor, target: torch.Tensor, cuts: torch.Tensor
) -> torch.Tensor:
    """Return :func:`slot_logits` of a training pass, with slots that have no target."""
    cut = Blocks.cut
    target = F.pad(target, (0, model.block_size), value=model.decoder.padding)

    def all_scored(*args: Any) -> Blocks:
        blocks = cut(*args)
        return replace(blocks, scored=torch.ones_like(blocks.scored))

    with patch.object(Blocks, "cut", all_scored):
        return slot_logits(model(batch_of(source, lengths, target, cuts)))


def save_checkpoint(
    path: Path,
    model: BaseFairseqModel,
    trainer: FairseqTask | Namespace | None = None,
    **task: object,
) -> Path:
    """Write a drafter or verifier as fairseq's trainer does.

    Args:
        trainer: the task that trained it, whose dictionaries and languages are noted.
        task: settings of its task.
    """
    task_name = "translation_specdec" if isinstance(model, Drafter) else "translation"
    if isinstance(model, BlockCausalDrafter):
        cfg: Any = {**asdict(model.cfg), "_name": "block_causal"}
    else:
        name = "block" if isinstance(model, BlockDrafter) else "transformer"
        cfg = Namespace(**{**flatten(model.args), "_name": name, "arch": name})
    state = trainer_state({"model": cfg, "task": {"_name": task_name, **task}}, model.float())
    torch.save({**state, "task_state": task_state(trainer or make_task())}, path)
    return path


def trainer_state(cfg: dict[str, Any], model: BaseFairseqModel) -> dict[str, object]:
    """A checkpoint of fairseq's trainer."""
    history = {"optimizer_name": "FairseqAdam", "lr_scheduler_state": {}, "num_updates": 7}
    return {
        "args": None,
        "cfg": cfg,
        "model": model.state_dict(),
        "optimizer_history": [history],
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}},
        "last_optimizer_state": {"state": {0: {"step": torch.tensor(1.0)}}},
    }


def task_state(task: FairseqTask) -> dict[str, object]:
    """The state of our task in checkpoints."""
    state: dict[str, object] = {KEY: fingerprints(task)}
    if languages := getattr(task, "multilingual", None):
        state[multilingual.KEY] = languages.options()
    return state


def flatten(args: Namespace) -> dict[str, Any]:
    """fairseq's Transformer settings under the names of its flags."""
    plain = (str, int, float, bool, type(None))
    flat = {key: value for key, value in vars(args).items() if isinstance(value, plain)}
    for side in ("encoder", "decoder"):
        for key, value in vars(getattr(args, side, Namespace())).items():
            flat[f"{side}_{key}"] = value
    return flat


def golden(name: str) -> Any:
    """One of the published pair's golden files."""
    path = PUBLISHED / "golden" / name
    if path.suffix == ".json":
        return json.loads(path.read_text("utf-8"))
    return torch.load(path, weights_only=True)


@lru_cache(maxsize=1)
def published_task() -> TranslationSpecdecTask:
    dictionary = Dictionary.load(str(PUBLISHED / "dict" / "dict.de.txt"))
    cfg = TranslationSpecdecConfig(source_lang="en", target_lang="de", block_size=10)
    return TranslationSpecdecTask(cfg, dictionary, dictionary)


@lru_cache(maxsize=1)
def published_drafter() -> Drafter:
    """The published drafter, in evaluation mode; do not change it."""
    return load_drafter(PUBLISHED / "drafter.pt", published_task())


def save_pair(folder: Path, source: str = "en", target: str = "de", seed: int = 13) -> Path:
    """A folder with dictionaries, a verifier and a drafter, as ``inference.py`` takes them."""
    languages = {"source_lang": source, "target_lang": target}
    for language in languages.values():
        make_dictionary().save(str(folder / f"dict.{language}.txt"))
    task = make_task()
    verifier = vary_output(make_verifier(task, seed=seed, **ONE_LAYER))
    save_checkpoint(folder / "verifier.pt", verifier, **languages)
    save_checkpoint(folder / "drafter.pt", make_causal(task, seed=5, **ONE_LAYER), **languages)
    return folder
