"""Which architecture a saved model is built as, and the fields that its configuration may have."""

from __future__ import annotations

import logging
import re
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
from specdec_plugins.files.errors import ConfigError

logger = logging.getLogger(__name__)

TRANSFORMER = "transformer"
SUPPORTED = (
    "supported are fairseq's `transformer`, trained for `translation` or for several languages "
    "(`translation_multi_simple_epoch`), and this plugin's own"
)

AS_TRANSFORMER = "a checkpoint's fields that fairseq does not know leave the network as it is"
"""Help of the flag."""

# Read with getattr by fairseq's Transformer, and declared nowhere (NormFormer).
UNDECLARED = {"scale_attn": bool, "scale_fc": bool, "scale_heads": bool, "scale_resids": bool}
# A Transformer that also aligns: only what it says of its attention differs.
OF_ALIGNMENT = {"alignment_heads": int, "alignment_layer": int, "full_context_alignment": bool}

# Files that training began with: the weights that are loaded have replaced what was in them.
STARTING_POINTS = ("encoder_embed_path", "decoder_embed_path", "init_encoder_from")
# What changes nothing but training, and that only of some models.
TRAINING_ONLY = ("decoder_layerdrop",)
LEFT_OUT = (*STARTING_POINTS, *TRAINING_ONLY)

# What fairseq writes down of every Transformer, whatever its architecture is called.
ALWAYS_SAVED = tuple(
    f"{side}_{name}"
    for side in ("encoder", "decoder")
    for name in (
        *("embed_dim", "ffn_embed_dim", "layers", "attention_heads"),
        *("normalize_before", "learned_pos"),
    )
)
# Options by these names would be a network's own.
OF_A_NETWORK = re.compile(
    "encoder|decoder|layer|head|attn|attention|norm|embed|posit|rope|rotary|alibi|relative|rel_pos"
    "|recurrent|ffn|glu|activation|expert|moe|adapter|softmax|residual"
)
# Of the tasks of multilingual models.
OF_TASKS = {"encoder_langtok", "decoder_langtok"}


def architecture(values: Mapping[str, object]) -> str:
    """Return the name of the registered architecture that a saved model is built as.

    A name that fairseq does not know is built as its Transformer, whether or not a user-dir that
    knows it has been imported.

    Args:
        values: the model's part of a configuration, by name.

    Raises:
        ConfigError: an architecture that is not supported, or one that cannot be a Transformer.
    """
    name = values.get("_name") or values.get("arch")
    if not isinstance(name, str):
        raise ConfigError(f"it names no architecture; {SUPPORTED}")
    model = ARCH_MODEL_REGISTRY.get(name) or MODEL_REGISTRY.get(name)
    if is_ours(model):
        return name
    if model is None or not (of_fairseq(model) and of_fairseq(ARCH_CONFIG_REGISTRY.get(name))):
        for needed in ALWAYS_SAVED:
            if values.get(needed) is None:
                raise ConfigError(
                    f"architecture {shown(name)} is unknown, and no Transformer: it has no "
                    f"{needed}; {SUPPORTED}"
                )
        _say_built_as_transformer(name)
        return TRANSFORMER
    if model in (TransformerModel, TransformerAlignModel):
        return name
    raise ConfigError(f"architecture {shown(name)} is not supported; {SUPPORTED}")


def is_ours(model: type | None) -> bool:
    """Return whether a model is a drafter or a head."""
    # Here, since the drafters' modules read checkpoints themselves.
    from specdec_plugins.models.acceptance_head import AcceptanceHeadModel
    from specdec_plugins.models.drafter import Drafter

    return model is not None and issubclass(model, (Drafter, AcceptanceHeadModel))


def of_fairseq(registered: object) -> bool:
    """Return whether something that may be registered is fairseq's, not that of a user-dir."""
    return registered is None or str(getattr(registered, "__module__", "")).startswith("fairseq.")


def check_others(name: str, values: Mapping[str, object], as_transformer: bool) -> None:
    """Look at what was saved beside the fields of an architecture: it would be left out.

    Args:
        name: of :func:`architecture`.
        as_transformer: it changes nothing of the network, as somebody says who knows.

    Raises:
        ConfigError: it speaks of another network.
    """
    known = {*known_fields(name), *LEFT_OUT, *OF_TASKS, *_options_of_fairseq()}
    known |= {"_name", "arch", "task", *REGISTRIES}
    others = sorted(key for key in values if key not in known and _is_set(values[key]))
    network = [key for key in others if OF_A_NETWORK.search(key)]
    if network and not as_transformer and not is_ours(ARCH_MODEL_REGISTRY.get(name)):
        raise ConfigError(
            f"its model has {shown(network[0])}, which fairseq's Transformer has not; {SUPPORTED}; "
            "if that changes nothing of the network, give --as-transformer"
        )
    if others:
        warn_of_dropped(f"model {name}", ", ".join(map(shown, others)))


def _is_set(value: object) -> bool:
    plain = isinstance(value, (bool, int, float, str, list, tuple, dict))
    return value is not None and (not plain or bool(value))


@cache
def warn_of_dropped(what: str, names: str) -> None:
    """Warn once, however often a file is read."""
    logger.warning("a checkpoint's %s has unknown fields, which are left out: %s", what, names)


@cache
def _say_built_as_transformer(name: str) -> None:
    """Warns once of a name, however often a file is read."""
    logger.warning(
        "architecture %s: built as fairseq's Transformer, not compared with code of its own",
        shown(name),
    )


@cache
def _options_of_fairseq() -> set[str]:
    """Return the options that trainings have: fairseq's, and those of what it and we register."""
    specdec_plugins.register()
    parser = ArgumentParser(conflict_handler="resolve")
    registries = [TASK_REGISTRY, *(kind["registry"] for kind in REGISTRIES.values())]
    for registered in (one for registry in registries for one in registry.values()):
        ours = registered.__module__.startswith("specdec_plugins.")
        if hasattr(registered, "add_args") and (ours or of_fairseq(registered)):
            registered.add_args(parser)
    names = {name for group in fields(FairseqConfig) for name in _names(group.type)}
    return names | {action.dest for action in parser._actions}


def _names(config: object) -> set[str]:
    return {field.name for field in fields(config)} if is_dataclass(config) else set()


@cache
def known_fields(name: str) -> dict[str, object]:
    """Return the types of an architecture's fields, by name."""
    declared = MODEL_DATACLASS_REGISTRY.get(name)
    if declared is not None:
        known = hints_of(declared)
    else:
        model = ARCH_MODEL_REGISTRY[name]
        own = OF_ALIGNMENT if model is TransformerAlignModel else getattr(model, "saved_fields", {})
        known = {**hints_of(TransformerConfig), **UNDECLARED, **own}
    return {name: hint for name, hint in known.items() if name not in LEFT_OUT}


@cache
def hints_of(config: type) -> dict[str, object]:
    """Return the types of a dataclass's fields; of a field that is a dataclass, those of its own
    fields, with its name before theirs (``encoder_layers``)."""
    hints = get_type_hints(config)
    found: dict[str, object] = {}
    for field in fields(config):
        hint = hints[field.name]
        if isinstance(hint, type) and is_dataclass(hint):
            inner = hints_of(hint)
            found.update({f"{field.name}_{name}": inner[name] for name in inner})
        elif not field.name.startswith("_") and hint is not Mapping[str, Any]:
            found[field.name] = hint
    return found


def shown(value: object) -> str:
    """Return a value of somebody else's, in at most 40 characters that a terminal can show."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    if not isinstance(value, (str, int, float)):
        return f"a {type(value).__name__}"
    text = ascii(value[:80] if isinstance(value, str) else value)
    return text if len(text) <= 40 else f"{text[:37]}..."
