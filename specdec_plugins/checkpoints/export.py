"""Export a checkpoint for shipping: weights and settings, nothing else."""

from __future__ import annotations

from argparse import Namespace
from typing import Any, Literal

from fairseq.dataclass.configs import FairseqConfig
from fairseq.models import MODEL_DATACLASS_REGISTRY
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from fairseq.tasks.translation import TranslationConfig
from omegaconf import OmegaConf
from torch import Tensor

from specdec_plugins.checkpoints import multilingual
from specdec_plugins.checkpoints.dictionaries import load_dictionary, noted
from specdec_plugins.checkpoints.draft_vocabulary import most_frequent
from specdec_plugins.checkpoints.loading import State, is_drafter, is_transformer, save_state
from specdec_plugins.checkpoints.upgrade import load_upgraded
from specdec_plugins.files.errors import CheckpointError
from specdec_plugins.host.packed_encoder import without_copies
from specdec_plugins.models.drafter import VOCABULARY

Settings = dict[str, Any]
"""A part of a configuration, by name."""
DraftFrom = tuple[int, str] | Literal["all"]
"""The tokens that a drafter drafts: so many, those that a text has most often; or all."""

# Settings that name places on the machine that trained; none is needed to build the model.
PLACES = ("data", "AR_path", "acceptance_head", "cost_profile", "drafter")


def export_checkpoint(
    source: str,
    target: str,
    languages: tuple[str | None, str | None] = (None, None),
    dictionaries: str | None = None,
    draft_from: DraftFrom | None = None,
    as_transformer: bool = False,
    half: bool = False,
) -> int:
    """Write ``source`` to ``target`` without optimizer state or paths.

    Args:
        languages: source and target, written into the checkpoint; fairseq saves only languages that
            training was given by flag, and else reads them off its data directory.
        dictionaries: the folder of the dictionaries that it was trained with, whose fingerprints
            are written into the checkpoint; those of the plugin's tasks hold them already.
        draft_from: the tokens that a drafter is to draft; None: those that it did.
        as_transformer: fields that fairseq does not know change nothing of the network.
        half: write weights in float16, not in their own precision.

    Returns:
        The size of ``target`` in bytes.

    Raises:
        CheckpointError: ``source`` cannot be read or has other weights than its model, a dictionary
            cannot be or is not the one that it was trained with, the draft vocabulary cannot be
            chosen, or ``target`` cannot be written.
    """
    state = load_upgraded(source, as_transformer)
    if not all(isinstance(tensor, Tensor) for tensor in state["model"].values()):
        raise CheckpointError(
            f"{source}: is no model that translates; of an acceptance head's checkpoint "
            "scripts/calibrate_head.py makes the file to ship"
        )
    task = state["cfg"]["task"]
    for name, language in zip(("source_lang", "target_lang"), languages, strict=True):
        if language:
            setattr(task, name, language)
    if dictionaries:
        both = (getattr(task, "source_lang", None), getattr(task, "target_lang", None))
        state["task_state"] = noted(
            state["task_state"], state["multilingual"], dictionaries, both, source
        )
    if draft_from is not None:
        _choose_drafts(state, draft_from, dictionaries, source)
    return save_state(inference_state(state, _stored(state["model"], half)), target)


def _choose_drafts(
    state: State,
    draft_from: DraftFrom,
    dictionaries: str | None,
    source: str,
) -> None:
    """Set the draft vocabulary of a drafter; see :func:`export_checkpoint`."""
    if not is_drafter(state):
        raise CheckpointError(f"--draft-vocabulary: {source} is no drafter")
    state["model"].pop(VOCABULARY, None)
    if draft_from == "all":
        return
    if not dictionaries:
        raise CheckpointError(
            f"--draft-vocabulary {draft_from[0]}: needs --dictionaries, the folder of the "
            "dictionaries that the drafter was trained with"
        )
    dictionary = load_dictionary(dictionaries, state["cfg"]["task"].target_lang)
    state["model"][VOCABULARY] = most_frequent(*draft_from, dictionary)


def inference_state(state: State, weights: dict[str, Tensor]) -> dict[str, object]:
    """Return a checkpoint with the settings of ``state`` and these weights, which fairseq's
    commands and ours load; without optimizer state or paths."""
    model, task = (_without_places(vars(state["cfg"][part])) for part in ("model", "task"))
    task = {**_defaults(task["_name"]), **task}
    if is_transformer(state):
        # For whoever has no plugin. CTranslate2's converter sets up the task from the model's part,
        # which has all options where fairseq-train writes it.
        if state["multilingual"] is None:
            task = {name: task[name] for name in task if name in _settings(TranslationConfig)}
            name = "translation"
        else:
            task = {**state["multilingual"].task_options(), **task}
            name = multilingual.TASK
        model = {**task, **model, "task": name}
        task["_name"] = name
    # Old architectures of fairseq have no dataclass, and then their settings are a namespace.
    saved = model if model["arch"] in MODEL_DATACLASS_REGISTRY else Namespace(**model)
    return {
        # fairseq's hub interface asks for all groups of settings; of this model are these two.
        "cfg": {**_settings(FairseqConfig), "model": saved, "task": task},
        "args": None,
        "model": weights,
        "optimizer_history": [
            {
                "num_updates": state["num_updates"],
                "criterion_name": "",
                "optimizer_name": "",
                "optimizer_state": None,
                "lr_scheduler_state": {},
            }
        ],
        "extra_state": {},
        "task_state": state["task_state"],
    }


def _defaults(task: str) -> Settings:
    """Return the defaults of a task's options, where they are known. fairseq's hub interface sets
    no option that a checkpoint does not name, such as those that are younger than it."""
    config = TASK_DATACLASS_REGISTRY.get(task)
    # Not what has no default, or follows an option of another group.
    return {
        name: value
        for name, value in (_settings(config) if config else {}).items()
        if not (isinstance(value, str) and (value == "???" or value.startswith("${")))
    }


def _settings(config: type) -> Settings:
    """Return the defaults of a configuration's dataclass."""
    plain = OmegaConf.to_container(OmegaConf.structured(config), resolve=False, enum_to_str=True)
    return {str(name): value for name, value in dict(plain).items()}


def _without_places(settings: Settings) -> Settings:
    return {name: None if name in PLACES else value for name, value in settings.items()}


def _stored(weights: dict[str, Tensor], half: bool) -> dict[str, Tensor]:
    """Return weights without the rest of their storages; tensors that were one stay one."""
    stored: dict[tuple[object, ...], Tensor] = {}
    result = {}
    for name, tensor in without_copies(weights).items():
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if key not in stored:
            halved = half and tensor.is_floating_point() and tensor.numel() > 1
            stored[key] = (tensor.half() if halved else tensor).detach().clone()
        result[name] = stored[key]
    return result
