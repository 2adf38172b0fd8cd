"""Give weights today's names, for commands that copy weights.

A model of fairseq's renames the weights of older checkpoints when it loads them: a fused matrix of
queries, keys and values (before November 2019), ``layer_norms.N``, ``embed_out``. So the model is
built here, too, but without memory.
"""

from __future__ import annotations

import os
from argparse import Namespace

from fairseq.data import Dictionary
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from specdec_plugins.checkpoints.archive import SAVED
from specdec_plugins.checkpoints.loading import (
    State,
    build_model,
    first_mismatches,
    is_transformer,
    load_state,
)
from specdec_plugins.files.errors import CheckpointError
from specdec_plugins.host.checkpoints import without_memory
from specdec_plugins.host.packed_encoder import without_copies


def load_upgraded(path: str | os.PathLike[str], as_transformer: bool = False) -> State:
    """Read a checkpoint, and give a Transformer's weights today's names.

    Weights of the plugin's own models never had others.
    """
    name, state = os.fspath(path), load_state(path, as_transformer)
    cfg, weights = state["cfg"]["model"], state["model"]
    if not is_transformer(state):
        return state
    dictionaries = []  # as long as the tables of embeddings
    for side in ("encoder", "decoder"):
        table = weights.get(f"{side}.embed_tokens.weight")
        if table is None:
            fault = f"{side}.embed_tokens.weight is missing"
            raise CheckpointError(f"{name}: is no whole Transformer: {fault}; {SAVED}")
        dictionary = Dictionary()
        for index in range(len(dictionary), len(table)):
            dictionary.add_symbol(f"madeupword{index:04d}")
        dictionaries.append(dictionary)
    # All layers: pruning is for those who load the file.
    whole = {**vars(cfg), "encoder_layers_to_keep": None, "decoder_layers_to_keep": None}
    task = TranslationTask(TranslationConfig(), *dictionaries)
    with without_memory():
        model = build_model(name, task, Namespace(**whole))
    model.upgrade_state_dict(weights)
    fault = first_mismatches(without_copies(model.state_dict()), without_copies(weights))
    if fault:
        raise CheckpointError(
            f"{name}: the weights are not those of the {cfg.arch} that it describes: {fault}; "
            f"{SAVED}"
        )
    return state
