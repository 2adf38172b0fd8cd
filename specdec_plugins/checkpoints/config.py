"""The configuration in a checkpoint, reduced to what is known and harmless.

While fairseq builds a model it evaluates some strings as Python (``adaptive_softmax_cutoff``) and
opens files that others name (``encoder_embed_path``). A checkpoint may come from a stranger, so
only fields of supported architectures and tasks are kept, and msgspec converts each to its type.
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from omegaconf import DictConfig
from omegaconf.nodes import ValueNode

from specdec_plugins.checkpoints import multilingual
from specdec_plugins.checkpoints.architectures import (
    LEFT_OUT,
    SUPPORTED,
    architecture,
    hints_of,
    is_ours,
    known_fields,
    options_of_fairseq,
)
from specdec_plugins.checkpoints.archive import SAVED, shown, warn_once
from specdec_plugins.checkpoints.multilingual import Multilingual
from specdec_plugins.files.errors import ConfigError

NETWORK = re.compile(
    "encoder|decoder|layer|head|attn|attention|norm|embed|posit|rope|rotary|alibi|relative|rel_pos"
    "|recurrent|ffn|glu|activation|expert|moe|adapter|softmax|residual"
)
"""Names of unknown options that may change the network."""
LANGUAGE_TOKENS = {"encoder_langtok", "decoder_langtok"}
# Integers that fairseq saves as text.
SAVED_AS_TEXT = ("decoder_input_dim", "decoder_output_dim")
REFUSED = {
    "adaptive_softmax_cutoff": "an adaptive softmax",
    "encoder_xformers_att_config": "attention of xFormers",
    "decoder_xformers_att_config": "attention of xFormers",
    "base_layers": "BASE layers",
    "merge_src_tgt_embed": "a table of both dictionaries, joined while the model is built,",
    "quant_noise_scalar": "scalar quantisation, which fairseq also evaluates with,",
}
"""Options that fairseq would evaluate or import, or by which the network differs."""
PLAIN = (type(None), bool, int, float, str, list, tuple, dict)
REFUSED_TASK = "translation_from_pretrained_bart"
"""A task whose sentences end with their language."""

TEXT = Annotated[str, msgspec.Meta(max_length=4096, pattern=r"\A(?s:(?!.*\$\{)[^\0]*)\Z")]
LAYER_NUMBERS = Annotated[str, msgspec.Meta(pattern=r"\A(\d{1,4}(,\d{1,4}){0,999})?\Z")]
"""Layers to keep, the only list that is supported."""
LIMITS = {"layers": 1024, "heads": 1024, "positions": 1 << 16, "block_size": 1024}
LIMITS |= {"min_params_to_wrap": 1 << 62, "": 1 << 20}
"""The largest integers by the end of their fields' names."""


def saved_model(config: object, as_transformer: bool = False) -> Namespace:
    """Return the model's part of a checkpoint's configuration, safe to build the model from.

    Args:
        config: a namespace with all options of a command line, a mapping or a node of omegaconf.
        as_transformer: ignore unknown fields, whatever their names.

    Returns:
        The architecture, as ``arch`` and ``_name``, and the fields that are set.
    """
    values = _values("model", config)
    name = architecture(values)
    known = known_fields(name)
    saved = _converted(values, known, "model", LIMITS, min_=0)
    options = {*known, *LEFT_OUT, *LANGUAGE_TOKENS, *options_of_fairseq(), "_name", "arch", "task"}
    # A value of an unknown type may have no truth.
    unset = {name for name, value in values.items() if isinstance(value, PLAIN) and not value}
    others = sorted(values.keys() - options - unset)
    network = [key for key in others if NETWORK.search(key)]
    if network and not as_transformer and not is_ours(ARCH_MODEL_REGISTRY.get(name)):
        raise ConfigError(
            f"its model has {shown(network[0])}, which fairseq's Transformer has not; {SUPPORTED}; "
            "if that changes nothing of the network, give --as-transformer"
        )
    _warn_of_dropped(f"model {name}", others)
    return Namespace(**saved, arch=name, _name=name)


def saved_task(config: object) -> Namespace:
    """Return the task's part of a checkpoint's configuration; for old checkpoints, its languages.

    A task of a user-dir does not change the network, and becomes ``translation``.
    """
    values = _values("task", config)
    name = _task_name(config, values)
    if not isinstance(name, str):
        raise ConfigError(f"its task is {shown(name)}; {SUPPORTED}")
    registered = TASK_REGISTRY.get(name)
    if registered is None or not registered.__module__.startswith(("fairseq.", "specdec_plugins.")):
        warn_once(f"task {shown(name)}: unknown to fairseq, taken for its translation")
        name, registered = "translation", TranslationTask
    translates = issubclass(registered, TranslationTask) and name != REFUSED_TASK
    if name != multilingual.TASK and not translates:
        raise ConfigError(f"its task is {shown(name)}; {SUPPORTED}")
    known = hints_of(TASK_DATACLASS_REGISTRY.get(name, TranslationConfig))
    if isinstance(config, Namespace) or name == multilingual.TASK:
        known = {side: known[side] for side in ("source_lang", "target_lang")}
    elif not registered.__module__.startswith("specdec_plugins."):  # ours: decoding options of 0.2
        _warn_of_dropped(f"task {name}", sorted(values.keys() - known.keys() - {"_name"}))
    return Namespace(**_converted(values, known, "task", {"": 1 << 62}), _name=name)


def saved_languages(config: object, folder: str) -> Multilingual | None:
    """Return the languages of the task of a checkpoint in ``folder``, if it is multilingual."""
    values = _values("task", config)
    is_multilingual = _task_name(config, values) == multilingual.TASK
    return Multilingual.of(values, folder) if is_multilingual else None


def stored_languages(task_state: object) -> Multilingual | None:
    """Return the languages in the state of this plugin's task, if it is multilingual."""
    saved = task_state.get(multilingual.KEY) if isinstance(task_state, Mapping) else None
    return None if saved is None else Multilingual.of(_values("task", saved), "")


def saved_fields(values: Mapping[str, object], config: type) -> dict[str, object]:
    """Return the saved fields of a dataclass."""
    return _converted(values, hints_of(config), "file", LIMITS)


def _task_name(config: object, values: Mapping[str, object]) -> object:
    """Return a task's name, which old namespaces of all options have as ``task``."""
    return values.get("task" if isinstance(config, Namespace) else "_name") or "translation"


def _values(part: str, node: object, depth: int = 1) -> dict[str, object]:
    """Return a part of a configuration as plain values by the names of :func:`hints_of`.

    Not deeper ones: a small file can describe a structure that would fill any memory.
    """
    if isinstance(node, DictConfig):
        content = node._value()
        node = content and {
            key: item._value() if isinstance(item, ValueNode) else item
            for key, item in content.items()
        }
    if isinstance(node, Namespace):
        node = vars(node)
    if not isinstance(node, Mapping) or not all(isinstance(key, str) for key in node):
        raise ConfigError(f"its configuration of the {part} is a {type(node).__name__}; {SAVED}")
    values: dict[str, object] = {}
    for name, value in node.items():
        if depth and isinstance(value, (Mapping, DictConfig)):
            inner = _values(part, value, 0)
            values |= {f"{name}_{key}": item for key, item in inner.items()}
        else:
            values[name] = value
    return values


def _converted(
    values: Mapping[str, object],
    known: Mapping[str, object],
    part: str,
    limits: Mapping[str, int],
    min_: int = -1,
) -> dict[str, object]:
    """Return the values of known fields that are set, each of its field's type."""
    saved = {name: values[name] for name in known if values.get(name) is not None}
    for name in REFUSED.keys() & saved.keys():
        if saved.pop(name):
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag}: {REFUSED[name]} is not supported; {SUPPORTED}")
    for name, value in saved.items():
        if isinstance(value, Enum):
            saved[name] = value.value
        elif name in SAVED_AS_TEXT and isinstance(value, str) and re.fullmatch(r"\d{1,9}", value):
            saved[name] = int(value)
    kinds = {name: _kind(known[name], name, min_, limits) for name in saved}
    try:
        struct = msgspec.defstruct("Saved", list(kinds.items()))
        result: dict[str, object] = msgspec.structs.asdict(msgspec.convert(saved, struct))
    except (msgspec.ValidationError, RecursionError) as error:
        fault = ascii(str(error))[1:-1][:200]
        raise ConfigError(f"its {part}: {fault}; it is damaged, or a fork's") from None
    if nan := [name for name, value in result.items() if value != value]:
        raise ConfigError(f"its {part}: {nan[0]} is NaN")
    return result


def _kind(hint: object, name: str, min_: int, limits: Mapping[str, int]) -> Any:
    """Return the type to which msgspec converts a field."""
    if get_origin(hint) is Union:
        hint = next(arg for arg in get_args(hint) if arg is not type(None))
    if get_origin(hint) is list:
        return LAYER_NUMBERS
    if isinstance(hint, type) and issubclass(hint, Enum):
        return Literal[tuple(str(member.value) for member in hint)]
    if hint is int:
        max_ = next(limit for end, limit in limits.items() if name.endswith(end))
        return Annotated[int, msgspec.Meta(ge=min_, le=max_)]
    return {bool: bool, float: float}.get(hint, TEXT)  # type: ignore[call-overload]


def _warn_of_dropped(part: str, names: list[str]) -> None:
    if names:
        listed = ", ".join(map(shown, names))
        warn_once(f"a checkpoint's {part} has unknown fields, which are left out: {listed}")
