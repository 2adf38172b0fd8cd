"""The configuration in a checkpoint, reduced to what is known and harmless.

fairseq evaluates some configuration strings as Python while it builds a model
(``adaptive_softmax_cutoff`` of a Transformer, ``encoder_layers`` of a convolutional model) and
opens files that others name (``encoder_embed_path``). A checkpoint comes from somebody else, so
nothing of its configuration reaches fairseq as it is: the architecture and the task must be ones
that this plugin supports, only their own fields are kept, and each value must be of its field's
type and of a size that can be.
"""

from __future__ import annotations

import logging
import re
from argparse import Namespace
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import TypeVar, Union, get_args, get_origin

from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from omegaconf import DictConfig
from omegaconf.nodes import ValueNode

from specdec_plugins.checkpoints import multilingual
from specdec_plugins.checkpoints.architectures import (
    SUPPORTED,
    architecture,
    check_others,
    hints_of,
    known_fields,
    shown,
    warn_of_dropped,
)
from specdec_plugins.checkpoints.multilingual import Multilingual
from specdec_plugins.files.errors import ConfigError

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Integers that fairseq takes from the command line as text, and makes numbers of while it builds.
SAVED_AS_TEXT = ("decoder_input_dim", "decoder_output_dim")

# What fairseq would evaluate or import, what works on several GPUs only, or is another network.
REFUSED = {
    "adaptive_softmax_cutoff": "an adaptive softmax",
    "encoder_xformers_att_config": "attention of xFormers",
    "decoder_xformers_att_config": "attention of xFormers",
    "base_layers": "BASE layers",
    "merge_src_tgt_embed": "a table of both dictionaries, joined while the model is built,",
    "quant_noise_scalar": "scalar quantisation, which fairseq also evaluates with,",
}

REFUSED_TASKS = ("translation_from_pretrained_bart",)
"""Those that translate, but have sentences of other kinds: here they end with their language."""

# The most that an integer field may say, by the end of its name; others may say OTHERWISE.
LIMITS = {"layers": 1024, "heads": 1024, "positions": 1 << 16, "block_size": 1024}
LIMITS["min_params_to_wrap"] = 1 << 62
OTHERWISE = 1 << 20
LONGEST = 4096


def saved_model(config: object, as_transformer: bool = False) -> Namespace:
    """Return the model's part of a checkpoint's configuration, fit to build the model from.

    Args:
        config: as it is in the file: a namespace (which then has all options of a command line),
            a mapping or a node of omegaconf.
        as_transformer: unknown fields change nothing of the network, whatever they are called.

    Returns:
        The architecture, as ``arch`` and ``_name``, and the fields that are set.

    Raises:
        ConfigError: an architecture that is not supported, or a value that is not of its field.
    """
    values = _values("model", config)
    name = architecture(values)
    kept = _checked(values, known_fields(name), "model", LIMITS, least=0)
    check_others(name, values, as_transformer)
    return Namespace(**kept, arch=name, _name=name)


def saved_task(config: object) -> Namespace:
    """Return the task's part of a checkpoint's configuration; of old checkpoints, its languages.

    A task of a user-dir says nothing of the network, and is taken for ``translation``.

    Raises:
        ConfigError: a task that does not translate, or a value that is not of its field.
    """
    values = _values("task", config)
    name = _task_name(config, values)
    if not isinstance(name, str):
        raise ConfigError(f"its task is {shown(name)}; {SUPPORTED}")
    registered = TASK_REGISTRY.get(name)
    if registered is None or not registered.__module__.startswith(("fairseq.", "specdec_plugins.")):
        _say_taken_for_translation(name)
        name, registered = "translation", TranslationTask
    translates = issubclass(registered, TranslationTask) and name not in REFUSED_TASKS
    if name != multilingual.TASK and not translates:
        raise ConfigError(f"its task is {shown(name)}; {SUPPORTED}")
    known = hints_of(TASK_DATACLASS_REGISTRY.get(name, TranslationConfig))
    if isinstance(config, Namespace) or name == multilingual.TASK:
        known = {side: known[side] for side in ("source_lang", "target_lang")}
    return Namespace(**_checked(values, known, "task", {}), _name=name)


def saved_languages(config: object, folder: str) -> Multilingual | None:
    """Return the languages that the task of a multilingual model says; None of another task.

    Args:
        config: as of :func:`saved_task`.
        folder: where the checkpoint lies.

    Raises:
        ConfigError: they cannot be told.
    """
    values = _values("task", config)
    known = _task_name(config, values) == multilingual.TASK
    return Multilingual.of(values, folder) if known else None


def kept_languages(task_state: object) -> Multilingual | None:
    """Return the languages that the state of this plugin's task keeps of a multilingual pair; None
    of a pair of two languages.

    Raises:
        ConfigError: they cannot be told.
    """
    kept = task_state.get(multilingual.KEY) if isinstance(task_state, Mapping) else None
    return None if kept is None else Multilingual.of(_values("task", kept), "")


def _task_name(config: object, values: Mapping[str, object]) -> object:
    """Old checkpoints have one namespace for everything, in which "task" is the task's name."""
    return values.get("task" if isinstance(config, Namespace) else "_name") or "translation"


def saved_fields(
    values: Mapping[str, object], config: type, others: Mapping[str, object]
) -> dict[str, object]:
    """Return the fields of a dataclass that were saved with its type's values.

    Args:
        others: the types of what is saved beside them, by name.

    Raises:
        ConfigError: an unknown field, or a value that is not of its field.
    """
    known = {**hints_of(config), **others}
    unknown = [name for name in values if name not in known]
    if unknown:
        raise ConfigError(f"unknown field {shown(unknown[0])}")
    return _checked(values, known, "file", LIMITS)


def _values(what: str, config: object) -> dict[str, object]:
    """Return a part of a configuration as plain values by name; ``encoder.layers`` is
    ``encoder_layers``."""
    values = {}
    for name, value in _items(what, config).items():
        if isinstance(value, (Mapping, DictConfig)):
            values.update({f"{name}_{key}": one for key, one in _items(what, value).items()})
        else:
            values[name] = value
    return values


def _items(what: str, node: object) -> dict[str, object]:
    """Return a node's values by name. What is deeper is left as it is: a small file can describe a
    structure that, written out, is larger than any memory."""
    if isinstance(node, DictConfig):
        content = node._value()
        node = content and {
            key: one._value() if isinstance(one, ValueNode) else one for key, one in content.items()
        }
    if isinstance(node, Namespace):
        node = vars(node)
    if not isinstance(node, Mapping) or not all(isinstance(key, str) for key in node):
        raise ConfigError(
            f"its configuration of the {what} is a {type(node).__name__}; give a checkpoint that "
            "fairseq-train has saved"
        )
    return dict(node)


def _checked(
    values: Mapping[str, object],
    known: Mapping[str, object],
    what: str,
    limits: Mapping[str, int],
    least: int = -1,
) -> dict[str, object]:
    """Return the values of known fields that are set, each of its field's type."""
    kept = {}
    for name, hint in known.items():
        value = values.get(name)
        if value is None:
            continue
        if name in REFUSED:
            if value:
                flag = name.replace("_", "-")
                raise ConfigError(f"--{flag}: {REFUSED[name]} is not supported; {SUPPORTED}")
            continue
        if name in SAVED_AS_TEXT and isinstance(value, str) and re.fullmatch("[0-9]{1,9}", value):
            value = int(value)
        try:
            kept[name] = _typed(value, hint, least, _limit(name, limits))
        except ConfigError as error:
            fault = f"its {what} has {name} {shown(value)}, which is {error}"
            raise ConfigError(f"{fault}; get the file from its author again") from None
    return kept


def _limit(name: str, limits: Mapping[str, int]) -> int:
    ends = (most for end, most in limits.items() if name.endswith(end))
    return next(ends, OTHERWISE if limits else 1 << 62)


def _typed(value: object, hint: object, least: int, most: int) -> object:
    """``value``, which must be of the type ``hint``; integers are from ``least`` to ``most``.

    Raises:
        ConfigError: it is not, and why.
    """
    if get_origin(hint) is Union:
        hint = next(arg for arg in get_args(hint) if arg is not type(None))
    if get_origin(hint) is list:
        return _layer_numbers(value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _choice(value, hint)
    if hint is bool:
        return _instance(value, bool, "neither True nor False")
    if hint is int:
        number = _instance(value, int, "no integer")
        if not least <= number <= most:
            raise ConfigError(f"not between {least} and {most}")
        return number
    if hint is float:
        real = _instance(value, (int, float), "no number")
        if real != real or (isinstance(real, int) and abs(real) > most):  # NaN
            raise ConfigError("no number that can be")
        return real
    text = _instance(value, str, "no text")
    if "${" in text or "\0" in text or len(text) > LONGEST:
        raise ConfigError("no plain text")
    return text


def _instance(value: object, kind: type[T] | tuple[type[T], ...], fault: str) -> T:
    """``value``, which must be a ``kind``; True and False are no numbers here."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(fault)
    return value


def _choice(value: object, kind: type[Enum]) -> str:
    choices = [str(member.value) for member in kind]
    if str(getattr(value, "value", value)) not in choices:
        raise ConfigError(f"none of {', '.join(choices)}")
    return str(getattr(value, "value", value))


def _layer_numbers(value: object) -> str:
    """Return the one list that is supported, of layers to keep, as fairseq's Transformer splits
    it."""
    if not isinstance(value, str) or not re.fullmatch(r"\d{1,4}(,\d{1,4}){0,999}|", value):
        raise ConfigError("no list of numbers")
    return value


def _say_dropped(values: Mapping[str, object], known: set[str], what: str) -> None:
    dropped = sorted(set(values) - known)
    if dropped:
        warn_of_dropped(what, ", ".join(shown(name) for name in dropped))


@cache
def _say_taken_for_translation(name: str) -> None:
    logger.warning("task %s: unknown to fairseq, taken for its translation", shown(name))
