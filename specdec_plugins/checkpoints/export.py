"""Export checkpoints for shipping: weights and settings, nothing else."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from dataclasses import dataclass

import torch
from fairseq.data import Dictionary
from fairseq.dataclass.configs import FairseqConfig
from fairseq.models import MODEL_DATACLASS_REGISTRY
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from fairseq.tasks.translation import TranslationConfig
from omegaconf import OmegaConf
from torch import Tensor

from specdec_plugins.checkpoints import multilingual
from specdec_plugins.checkpoints.loading import (
    KEY,
    SIDES,
    State,
    dictionary_fingerprint,
    is_drafter,
    is_transformer,
    load_dictionary,
    load_upgraded,
    save_state,
)
from specdec_plugins.files.errors import CheckpointError
from specdec_plugins.files.output import JsonObject
from specdec_plugins.host.checkpoints import without_copies
from specdec_plugins.models.drafter import VOCABULARY

#: Settings that are paths of the machine that trained; no model needs them.
PATHS = ("data", "AR_path", "acceptance_head", "drafter")
#: Share of a text's tokens; of a text that is not segmented a quarter or more are unknown.
MAX_UNKNOWN = 0.02


@dataclass(frozen=True)
class Training:
    """Languages of a training, source and target, and the folder of its dictionaries, whose
    fingerprints are stored: fairseq's checkpoints may lack both."""

    languages: tuple[str | None, str | None] = (None, None)
    dictionaries: str | None = None


def export_checkpoint(
    source: str,
    target: str,
    training: Training = Training(),
    draft_from: tuple[int, str] | None = None,
    as_transformer: bool = False,
    half: bool = False,
) -> int:
    """Write ``source`` to ``target`` without optimizer state or paths; return its size in bytes.

    Args:
        draft_from: a drafter's new vocabulary, a number of the most frequent tokens of a text file;
            None leaves it as it is.
        as_transformer: ignore fields that fairseq does not know.
        half: write weights in float16.
    """
    state = load_upgraded(source, as_transformer)
    if not all(isinstance(tensor, Tensor) for tensor in state["model"].values()):
        raise CheckpointError(
            f"{source}: does not translate; scripts/calibrate_head.py exports an acceptance head"
        )
    task = state["cfg"]["task"]
    dictionaries = training.dictionaries
    for side, language in zip(SIDES, training.languages, strict=True):
        if language:
            setattr(task, f"{side}_lang", language)
    if dictionaries:
        prints = {}
        for side in SIDES:
            dictionary = load_dictionary(dictionaries, getattr(task, f"{side}_lang", None))
            if state["multilingual"] is not None:
                state["multilingual"].augment(dictionary)
            prints[side] = dictionary_fingerprint(dictionary)
        if state["task_state"].get(KEY, prints) != prints:
            raise CheckpointError(
                f"{source}: was trained with other dictionaries than those in {dictionaries}; "
                "name their folder"
            )
        state["task_state"] = {**state["task_state"], KEY: prints}
    if draft_from is not None:
        if not is_drafter(state):
            raise CheckpointError(f"--draft-vocabulary: {source} is not a drafter")
        if not dictionaries:
            raise CheckpointError("--draft-vocabulary: needs the drafter's --dictionaries")
        dictionary = load_dictionary(dictionaries, task.target_lang)
        state["model"][VOCABULARY] = most_frequent(*draft_from, dictionary)
    return save_state(inference_state(state, _stored(state["model"], half)), target)


def most_frequent(count: int, path: str, dictionary: Dictionary) -> Tensor:
    """Return a text's ``(count,)`` most frequent tokens and EOS, in the dictionary's order.

    Args:
        path: segmented text, a sentence a line, ideally the verifier's output.
    """
    seen = Counter[int]()
    eos = dictionary.eos()
    marks = 0
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            words = line.split()
            marks += words.count(dictionary.unk_word)  # which a verifier may write
            seen.update(map(dictionary.index, [*words, dictionary.eos_word]))
    total = sum(seen.values())
    unknown = seen.pop(dictionary.unk(), 0) - marks
    seen.pop(dictionary.pad(), None)
    if unknown > MAX_UNKNOWN * total:
        raise CheckpointError(
            f"--draft-text {path}: of {total} tokens {unknown} are not in the dictionary; "
            "give text segmented as the drafter's training text was"
        )
    if not 2 <= count <= len(seen):
        raise CheckpointError(
            f"--draft-vocabulary {count}: must be from 2 to the {len(seen)} kinds of tokens "
            f"that {path} has"
        )
    # Ties go to the first in the dictionary. EOS, which ends drafts, is always included.
    ranked = sorted(seen, key=lambda token: (token != eos, -seen[token], token))
    return torch.tensor(sorted(ranked[:count]))


def inference_state(state: State, weights: dict[str, Tensor]) -> dict[str, object]:
    """Return a checkpoint for inference by our commands and fairseq's: no optimizer, no paths."""
    model = _without_paths(state["cfg"]["model"])
    task = _without_paths(state["cfg"]["task"])
    # fairseq's hub interface does not set the defaults of a task's options. Some have none, or
    # follow another group's.
    config = TASK_DATACLASS_REGISTRY.get(task["_name"])
    if config:
        defaults = _settings(config).items()
        task = {n: v for n, v in defaults if not str(v).startswith(("???", "${"))} | task
    if is_transformer(state):
        # It must load without the plugin. CTranslate2's converter reads the task's options from the
        # model's part, where fairseq-train writes all options.
        languages = state["multilingual"]
        if languages is None or not languages.is_stock:
            task = {name: task[name] for name in task if name in _settings(TranslationConfig)}
            task["_name"] = "translation"
        else:
            task = {**languages.task_options(), **task, "_name": multilingual.TASK}
        model = {**task, **model, "task": task["_name"]}
    last: JsonObject = {
        "num_updates": state["num_updates"],
        "lr_scheduler_state": {},
        "criterion_name": "",
        "optimizer_name": "",
        "optimizer_state": None,
    }
    # fairseq keeps the settings of architectures without a dataclass as a namespace.
    saved = model if model["arch"] in MODEL_DATACLASS_REGISTRY else Namespace(**model)
    return {
        # fairseq's hub interface reads all groups of settings.
        "cfg": {**_settings(FairseqConfig), "model": saved, "task": task},
        "args": None,
        "model": weights,
        "optimizer_history": [last],
        "extra_state": {},
        "task_state": state["task_state"],
    }


def _without_paths(settings: Namespace) -> JsonObject:
    values = vars(settings)
    return values | dict.fromkeys(values.keys() & PATHS)


def _settings(config: type) -> JsonObject:
    plain = OmegaConf.to_container(OmegaConf.structured(config), resolve=False, enum_to_str=True)
    return {str(name): value for name, value in dict(plain).items()}


def _stored(weights: dict[str, Tensor], half: bool) -> dict[str, Tensor]:
    """Copy weights out of larger storages; tensors that share memory still do."""
    stored: dict[tuple[object, ...], Tensor] = {}
    result = {}
    for name, tensor in without_copies(weights).items():
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if key not in stored:
            if half and tensor.is_floating_point() and tensor.numel() > 1:
                tensor = tensor.half()
            stored[key] = tensor.detach().clone()
        result[name] = stored[key]
    return result
