"""fairseq's architectures and options, and the types of their fields."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_type_hints

from fairseq.dataclass.configs import FairseqConfig
from fairseq.models import (
    ARCH_CONFIG_REGISTRY,
    ARCH_MODEL_REGISTRY,
    MODEL_DATACLASS_REGISTRY,
    MODEL_REGISTRY,
)
from fairseq.models.transformer import TransformerConfig, TransformerModel
from fairseq.models.transformer_align import TransformerAlignModel
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_REGISTRY

import specdec_plugins
from specdec_plugins.checkpoints.archive import shown, warn_once
from specdec_plugins.files.errors import ConfigError
from specdec_plugins.models.acceptance_head import AcceptanceHeadModel
from specdec_plugins.models.drafter import Drafter

TRANSFORMER = "transformer"
SUPPORTED = (
    "supported are fairseq's `transformer`, trained for `translation` or for several languages "
    "(`translation_multi_simple_epoch`), and this plugin's own"
)
AS_TRANSFORMER = "a checkpoint's fields that fairseq does not know leave the network as it is"
"""Help of the flag."""

# NormFormer's, which fairseq's Transformer reads and nothing declares.
UNDECLARED = {"scale_attn": bool, "scale_fc": bool, "scale_heads": bool, "scale_resids": bool}
ALIGNMENT = {"alignment_heads": int, "alignment_layer": int, "full_context_alignment": bool}
# Options of training only, among them files.
LEFT_OUT = ("encoder_embed_path", "decoder_embed_path", "init_encoder_from", "decoder_layerdrop")
# Saved for every Transformer, whatever the architecture's name.
SIZES = ("embed_dim", "ffn_embed_dim", "layers", "attention_heads", "normalize_before")
ALWAYS_SAVED = [f"{s}_{name}" for s in ("encoder", "decoder") for name in (*SIZES, "learned_pos")]


def architecture(values: Mapping[str, object]) -> str:
    """Return the name of the registered architecture by which a saved model is built.

    An architecture that is not fairseq's is built as its Transformer, even if a user-dir knows it.
    """
    name = values.get("_name") or values.get("arch")
    if not isinstance(name, str):
        raise ConfigError(f"it names no architecture; {SUPPORTED}")
    model = ARCH_MODEL_REGISTRY.get(name) or MODEL_REGISTRY.get(name)
    if is_ours(model):
        return name
    if model is None or not (is_stock(model) and is_stock(ARCH_CONFIG_REGISTRY.get(name))):
        if missing := [needed for needed in ALWAYS_SAVED if values.get(needed) is None]:
            raise ConfigError(
                f"architecture {shown(name)} is unknown, and no Transformer: it has no "
                f"{missing[0]}; {SUPPORTED}"
            )
        warn_once(
            f"architecture {shown(name)}: built as fairseq's Transformer, not compared with code "
            "of its own"
        )
        return TRANSFORMER
    if model in (TransformerModel, TransformerAlignModel):
        return name
    raise ConfigError(f"architecture {shown(name)} is not supported; {SUPPORTED}")


def is_ours(model: type | None) -> bool:
    """Return whether a model is a drafter or an acceptance head."""
    return model is not None and issubclass(model, (Drafter, AcceptanceHeadModel))


def is_stock(registered: object) -> bool:
    """Return whether a registered object is fairseq's, not a user-dir's."""
    return registered is None or str(getattr(registered, "__module__", "")).startswith("fairseq.")


@cache
def options_of_fairseq() -> set[str]:
    """Return the options of training, those of registered tasks and the like among them."""
    specdec_plugins.register()
    parser = ArgumentParser(conflict_handler="resolve")
    registries = [TASK_REGISTRY, *(kind["registry"] for kind in REGISTRIES.values())]
    for registered in (item for registry in registries for item in registry.values()):
        is_ours = registered.__module__.startswith("specdec_plugins.")
        if hasattr(registered, "add_args") and (is_ours or is_stock(registered)):
            registered.add_args(parser)
    groups = [group.type for group in fields(FairseqConfig) if is_dataclass(group.type)]
    names = {field.name for group in groups for field in fields(group)}
    chosen = {"task", "pad", "eos", "unk", *REGISTRIES}
    return names | chosen | {action.dest for action in parser._actions}


@cache
def known_fields(name: str) -> dict[str, object]:
    """Return the types of an architecture's fields, by name."""
    declared = MODEL_DATACLASS_REGISTRY.get(name)
    if declared is not None:
        known = hints_of(declared)
    else:
        model = ARCH_MODEL_REGISTRY[name]
        more = ALIGNMENT if model is TransformerAlignModel else getattr(model, "saved_fields", {})
        known = {**hints_of(TransformerConfig), **UNDECLARED, **more}
    return {name: hint for name, hint in known.items() if name not in LEFT_OUT}


@cache
def hints_of(config: type) -> dict[str, object]:
    """Return the types of a dataclass's fields; ``encoder.layers`` is ``encoder_layers``."""
    hints = get_type_hints(config)
    types: dict[str, object] = {}
    for field in fields(config):
        hint = hints[field.name]
        if isinstance(hint, type) and is_dataclass(hint):
            inner = hints_of(hint)
            types.update({f"{field.name}_{name}": inner[name] for name in inner})
        elif not field.name.startswith("_") and hint is not Mapping[str, Any]:
            types[field.name] = hint
    return types
