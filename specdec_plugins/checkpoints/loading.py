"""Read fairseq checkpoints, whoever wrote them, and build their models.

Neither the file (:mod:`specdec_plugins.checkpoints.archive`) nor the configuration in it
(:mod:`specdec_plugins.checkpoints.config`) is trusted: nothing in them is run, and no memory is
allocated that the file does not fill.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from argparse import Namespace
from collections.abc import Mapping
from typing import TypedDict

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY, BaseFairseqModel
from fairseq.models.transformer import TransformerModelBase
from fairseq.tasks import FairseqTask
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from specdec_plugins.checkpoints import multilingual
from specdec_plugins.checkpoints.archive import (
    SAVED,
    check_weights,
    load_archive,
    one_line,
    warn_once,
)
from specdec_plugins.checkpoints.config import (
    saved_languages,
    saved_model,
    saved_task,
    stored_languages,
)
from specdec_plugins.checkpoints.multilingual import Multilingual, adopt
from specdec_plugins.files.errors import CheckpointError, ConfigError
from specdec_plugins.files.output import Location, whole_file
from specdec_plugins.host.checkpoints import BUILDING, REDUNDANT, use_plain_encoder, without_memory
from specdec_plugins.models.drafter import Drafter
from specdec_plugins.verifiers.families import family_of
from specdec_plugins.verifiers.folder import is_folder
from specdec_plugins.verifiers.network import OUTPUT_BIAS, fold_bias, network_of

OTHER_DICTIONARIES = "check that the data directory holds the dictionaries it was trained with"
#: The key of a checkpoint's ``task_state`` that holds fingerprints of its dictionaries by side: a
#: model loads with a wrong one of the right size, and translates into nonsense.
KEY = "dictionaries"
SIDES = ("source", "target")
#: fairseq-preprocess's default of ``--padding-factor``: a dictionary's number of entries is a
#: multiple of it.
PADDED = 8


class State(TypedDict):
    """A checkpoint that has been checked."""

    #: Weights by name, all finite.
    model: dict[str, torch.Tensor]
    #: Parts ``model`` and ``task``, as :func:`saved_model` and :func:`saved_task` return them.
    cfg: dict[str, Namespace]
    #: The languages of a multilingual model.
    multilingual: Multilingual | None
    num_updates: int
    task_state: Mapping[str, object]
    #: Unchecked.
    extra_state: dict[str, object]


def load_state(path: Location, as_transformer: bool = False) -> State:
    """Read a fairseq checkpoint, or a folder of transformers, onto the CPU, and check it.

    Args:
        as_transformer: see :func:`saved_model`.
    """
    name = os.fspath(path)
    if is_folder(name):
        return _state_of_folder(name)
    state = load_archive(name)
    config = state.get("cfg") or {}
    if state.get("args") is not None:  # as fairseq saved them before version 0.10.1
        config = {"model": state["args"], "task": state["args"]}
    parts = {"model": state.get("model"), "extra_state": state.get("extra_state"), "cfg": config}
    for key, part in parts.items():
        if not isinstance(part, Mapping) or (key == "cfg" and not {"model", "task"} <= set(part)):
            raise CheckpointError(f"{name}: not a fairseq checkpoint: it has no '{key}'; {SAVED}")
    if "shard_metadata" in state:
        raise CheckpointError(
            f"{name}: is a shard of a checkpoint (--use-sharded-state), which holds part of each "
            "weight; train without it, or join the shards"
        )
    task_state = state.get("task_state")
    if not isinstance(task_state, Mapping):
        task_state = {}
    # fairseq 0.12.2 saves its packed copies uninitialised; nothing reads them.
    check_weights(
        name, {key: x for key, x in state["model"].items() if not REDUNDANT.search(str(key))}
    )
    try:
        cfg = {
            "model": saved_model(config["model"], as_transformer),
            "task": saved_task(config["task"]),
        }
        languages = stored_languages(task_state)
        languages = languages or saved_languages(config["task"], os.path.dirname(name))
    except ConfigError as error:
        raise CheckpointError(f"{name}: {error}") from error
    updates = 0
    match state.get("optimizer_history"):
        case list([*_, {"num_updates": int(count)}]):
            updates = max(count, 0)
    return {
        "model": dict(state["model"]),
        "cfg": cfg,
        "multilingual": languages,
        "num_updates": updates,
        "task_state": task_state,
        "extra_state": dict(state["extra_state"]),
    }


def _state_of_folder(folder: str) -> State:
    family = family_of(folder)
    model, weights = network_of(family)
    source, target = family.languages
    task_state: dict[str, object] = {
        KEY: {side: dictionary_fingerprint(family.dictionary(side)) for side in SIDES}
    }
    languages = family.multilingual
    if languages is not None:
        task_state[multilingual.KEY] = languages.options()
    return {
        "model": weights,
        "cfg": {
            "model": model,
            "task": Namespace(_name="translation", source_lang=source, target_lang=target),
        },
        "multilingual": languages,
        "num_updates": 0,
        "task_state": task_state,
        "extra_state": {},
    }


def is_drafter(state: State) -> bool:
    """Return whether a checkpoint is a drafter's."""
    return issubclass(ARCH_MODEL_REGISTRY.get(state["cfg"]["model"].arch, object), Drafter)


def is_transformer(state: State) -> bool:
    """Return whether a checkpoint is a Transformer's of fairseq."""
    return issubclass(ARCH_MODEL_REGISTRY[state["cfg"]["model"].arch], TransformerModelBase)


def load_model(path: Location, task: FairseqTask, state: State | None = None) -> BaseFairseqModel:
    """Build the model of a checkpoint for inference: on the CPU, in float32, in evaluation mode.

    Unlike fairseq's ``load_model_ensemble_and_task`` it leaves the state of ``task``, which lends
    the dictionaries, as it is. ``state``: the checkpoint, if it is read already.
    """
    name = os.fspath(path)
    if state is None:
        state = load_state(name, getattr(getattr(task, "cfg", None), "as_transformer", False))
    cfg = state["cfg"]["model"]
    weights = state["model"]
    if state["multilingual"] is not None:
        adopt(state["multilingual"], task, name)
    else:
        trained, current = (
            tuple(getattr(part, f"{side}_lang", None) for side in ("source", "target"))
            for part in (state["cfg"]["task"], getattr(task, "cfg", None))
        )
        if None not in trained and trained == current[::-1] != current:
            raise CheckpointError(
                f"{name}: translates the other direction; give -s {trained[0]} -t {trained[1]}"
            )
    check_dictionaries(state["task_state"], task, name)
    # First without memory: a file may describe a model of any size.
    with BUILDING:
        with without_memory():
            _load_weights(name, build_model(name, task, cfg), weights, cfg)
        model = build_model(name, task, cfg)
    # Some models change with the number of updates (layer freezing, schedules of dropout).
    model.set_num_updates(state["num_updates"])
    _load_weights(name, model, weights, cfg)
    use_plain_encoder(model)
    return model.eval()


def _load_weights(
    name: str, model: BaseFairseqModel, saved: Mapping[str, torch.Tensor], cfg: Namespace
) -> None:
    if OUTPUT_BIAS in saved:
        model.decoder.output_projection.bias = torch.nn.Parameter(
            torch.empty_like(saved[OUTPUT_BIAS])
        )
    wanted = model.state_dict()
    weights = {key: saved[key] for key in saved if key in wanted or not REDUNDANT.search(key)}
    # fairseq 0.12.2 wants a placeholder that other versions do not save, and never reads it.
    weights = {key: wanted[key] for key in wanted if key.endswith("._float_tensor")} | weights
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about weights that are not copied, without memory
            # A copy, since pruning changes it.
            model.load_state_dict(weights, strict=True, model_cfg=Namespace(**vars(cfg)))
    except Exception as error:  # fairseq's upgrading of old weights can raise anything
        fault = " ".join(str(error).split())[:300]
        fault = f"the weights do not fit the model: {fault}"
        for side, part in zip(SIDES, ("encoder", "decoder")):
            table = f"{part}.embed_tokens.weight"
            sizes = [len(tables[table]) for tables in (saved, wanted) if table in tables]
            if len(set(sizes)) == 2:
                fault = "its {} dictionary has {} entries, yours {}".format(side, *sizes)
                if 0 < sizes[0] - sizes[1] < PADDED:
                    fault += "; are its last lines, madeupword0000 and so on, missing?"
                break
        raise CheckpointError(f"{name}: {fault}; {OTHER_DICTIONARIES}") from error


def build_model(name: str, task: FairseqTask, cfg: Namespace) -> BaseFairseqModel:
    """Build the model of a checked configuration from the file ``name``."""
    try:
        return task.build_model(Namespace(**vars(cfg)), from_checkpoint=True)
    except Exception as error:  # fairseq raises many kinds
        raise CheckpointError(
            f"{name}: its {cfg.arch} model cannot be built: {one_line(error)}; {OTHER_DICTIONARIES}"
        ) from error


def load_dictionary(folder: str, language: str | None, side: str = "source") -> Dictionary:
    """Return a language's dictionary; ``side``: where a folder of transformers has two."""
    path = os.path.join(folder, f"dict.{language}.txt")
    if is_folder(folder) and not os.path.exists(path):
        return family_of(folder).dictionary(side)
    try:
        return Dictionary.load(path)
    except Exception as error:  # fairseq raises several kinds
        raise CheckpointError(
            f"{path}: cannot be read as a dictionary ({one_line(error)}); "
            "name its folder by --dictionaries"
        ) from error


def dictionary_fingerprint(dictionary: Dictionary) -> str:
    """Return the SHA-256 of a fairseq dictionary's symbols, in their order."""
    lines = "".join(f"{symbol}\n" for symbol in dictionary.symbols)
    return hashlib.sha256(lines.encode("utf-8", "surrogatepass")).hexdigest()


def fingerprints(task: FairseqTask) -> dict[str, str]:
    """Return the fingerprints of a task's dictionaries, by side."""
    return {side: dictionary_fingerprint(getattr(task, f"{side}_dictionary")) for side in SIDES}


def check_dictionaries(task_state: Mapping[str, object], task: FairseqTask, name: str) -> None:
    """Compare a task's dictionaries with those that the checkpoint ``name`` was trained with.

    A checkpoint of another program, which names none, gets a warning.
    """
    saved = task_state.get(KEY)
    if not isinstance(saved, Mapping):
        warn_once(f"{name}: does not say which dictionaries it was trained with; check yours")
        return
    for side, current in fingerprints(task).items():
        if saved.get(side) != current:
            raise CheckpointError(
                f"{name}: was trained with another {side} dictionary (other words, or their "
                "order); give the data directory of its training"
            )


def save_state(state: Mapping[str, object], path: Location) -> int:
    """Write a checkpoint, whole or not at all, and return its size in bytes.

    It takes its name only if it can be read again, with the same weights bit by bit.
    """
    weights = state["model"]
    assert isinstance(weights, Mapping)
    check_weights(os.fspath(path), weights)
    try:
        with whole_file(path) as file:
            torch.save(state, file)
            file.flush()
            if os.path.isfile(file.name):
                load = load_state if "cfg" in state else load_archive
                stored = load(file.name)["model"]
                same = (_same(stored[name], weights[name]) for name in weights if name in stored)
                if stored.keys() != weights.keys() or not all(same):
                    raise RuntimeError("it differs when read again")
    except (OSError, RuntimeError) as error:
        # torch complains of positions in the file; the system's error before says why.
        reasons = (getattr(cause, "strerror", None) for cause in (error, error.__context__))
        fault = next(filter(None, reasons), one_line(error))
        raise CheckpointError(f"{path}: cannot be written ({fault}); name another file") from error
    return os.path.getsize(path)


def _same(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two tensors are equal bit by bit."""
    content = (item.cpu().flatten().contiguous().view(torch.uint8) for item in (first, second))
    return (first.dtype, first.shape) == (second.dtype, second.shape) and torch.equal(*content)


def load_upgraded(path: Location, as_transformer: bool = False) -> State:
    """Read a checkpoint, and give a Transformer's weights today's names, to copy them.

    A model of fairseq's renames the weights of older checkpoints when it loads them: a fused matrix
    of queries, keys and values (before November 2019), ``layer_norms.N``, ``embed_out``. So the
    model is built here, too, but without memory.
    """
    name = os.fspath(path)
    state = load_state(path, as_transformer)
    cfg = state["cfg"]["model"]
    weights = state["model"]
    if not is_transformer(state):
        return state
    fold_bias(cfg, weights)
    dictionaries = []  # as long as the tables of embeddings
    for side in ("encoder", "decoder"):
        dictionary = Dictionary()
        dictionary.pad_to_multiple_(len(weights.get(f"{side}.embed_tokens.weight", ())))
        dictionaries.append(dictionary)
    # All layers: pruning is for those who load the file.
    whole = Namespace(**vars(cfg))
    whole.encoder_layers_to_keep = whole.decoder_layers_to_keep = None
    with without_memory():
        model = build_model(name, TranslationTask(TranslationConfig(), *dictionaries), whole)
        model.upgrade_state_dict(weights)
        _load_weights(name, model, weights, whole)
    return state
