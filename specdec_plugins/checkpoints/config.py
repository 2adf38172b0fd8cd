"""The configuration in a checkpoint, reduced to what is known and harmless.

While fairseq builds a model it evaluates some strings as Python (``adaptive_softmax_cutoff``) and
opens files that others name (``encoder_embed_path``). A checkpoint may come from a stranger, so
only fields of supported architectures and tasks are kept, and msgspec converts each to its type.
"""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from fairseq import models
from fairseq.dataclass.configs import FairseqConfig
from fairseq.models.transformer import TransformerConfig, TransformerModel
from fairseq.models.transformer_align import TransformerAlignModel
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from omegaconf import DictConfig
from omegaconf.nodes import ValueNode

import specdec_plugins
from specdec_plugins.checkpoints import multilingual
from specdec_plugins.checkpoints.archive import SAVED, shown, warn_once
from specdec_plugins.checkpoints.multilingual import Multilingual
from specdec_plugins.files.errors import ConfigError
from specdec_plugins.host import activations as _swish  # noqa: F401, registers it
from specdec_plugins.models.acceptance_head import AcceptanceHeadModel
from specdec_plugins.models.drafter import Drafter

SUPPORTED = (
    "supported are fairseq's `transformer`, trained for `translation` or for several languages "
    "(`translation_multi_simple_epoch`), and this plugin's own"
)
AS_TRANSFORMER = "trust that options unknown to fairseq do not change the network"

# NormFormer's, which fairseq's Transformer reads and nothing declares.
UNDECLARED = {"scale_attn": bool, "scale_fc": bool, "scale_heads": bool, "scale_resids": bool}
ALIGNMENT = {"alignment_heads": int, "alignment_layer": int, "full_context_alignment": bool}
# Options of training only, among them files.
LEFT_OUT = (
    *("encoder_embed_path", "decoder_embed_path", "init_encoder_from", "decoder_layerdrop"),
    *("mask_token", "langtoks_main"),
)
# Saved for every Transformer, whatever the architecture's name.
SIZES = ("embed_dim", "ffn_embed_dim", "layers", "attention_heads", "normalize_before")
ALWAYS_SAVED = [f"{s}_{name}" for s in ("encoder", "decoder") for name in (*SIZES, "learned_pos")]
#: Names of unknown options that may change the network.
NETWORK = re.compile(
    "encoder|decoder|layer|head|attn|attention|norm|embed|posit|rope|rotary|alibi|relative|rel_pos"
    "|recurrent|ffn|glu|activation|expert|moe|adapter|softmax|residual"
)
# Integers that fairseq saves as text.
SAVED_AS_TEXT = ("decoder_input_dim", "decoder_output_dim")
#: Options that fairseq would evaluate or import, or by which the network differs.
REFUSED = {
    "adaptive_softmax_cutoff": "an adaptive softmax",
    "encoder_xformers_att_config": "attention of xFormers",
    "decoder_xformers_att_config": "attention of xFormers",
    "base_layers": "BASE layers",
    "merge_src_tgt_embed": "a table of both dictionaries, joined while the model is built,",
    "quant_noise_scalar": "scalar quantisation, which fairseq also evaluates with,",
}
PLAIN = (type(None), bool, int, float, str, list, tuple, dict)

TEXT = Annotated[str, msgspec.Meta(max_length=4096, pattern=r"\A(?s:(?!.*\$\{)[^\0]*)\Z")]
#: Layers to keep, the only list that is supported, or to read.
LAYER_NUMBERS = Annotated[str, msgspec.Meta(pattern=r"\A(\d{1,4}(,\d{1,4}){0,999})?\Z")]
#: The largest integers by the end of their fields' names.
LIMITS = {"layers": 1024, "heads": 1024, "positions": 1 << 16, "block_size": 1024}
LIMITS |= {"min_params_to_wrap": 1 << 62, "": 1 << 20}


def saved_model(config: object, as_transformer: bool = False) -> Namespace:
    """Return the model's part of a checkpoint's configuration, safe to build the model from.

    That is the architecture, as ``arch`` and ``_name``, and the fields that are set; with
    ``as_transformer`` unknown fields are ignored, whatever their names.
    """
    values = _values("model", config)
    name = architecture(values)
    known = known_fields(name)
    saved = _converted(values, known, "model", LIMITS, min_=0)
    options = {*known, *LEFT_OUT, *options_of_fairseq()}
    # A value of an unknown type may have no truth.
    unset = {name for name, value in values.items() if isinstance(value, PLAIN) and not value}
    others = sorted(values.keys() - options - unset)
    network = [key for key in others if NETWORK.search(key)]
    if network and not as_transformer and not _is_ours(models.ARCH_MODEL_REGISTRY.get(name)):
        raise ConfigError(
            f"its model has {shown(network[0])}, which fairseq's Transformer lacks; {SUPPORTED}; "
            "if that does not change the network, give --as-transformer"
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
        warn_once(f"task {shown(name)}: unknown to fairseq; treated as its translation")
        name = "translation"
        registered = TranslationTask
    # Sentences of fairseq's BART end with their language.
    translates = issubclass(registered, TranslationTask) and not name.endswith("_pretrained_bart")
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
    if _task_name(config, values) != multilingual.TASK:
        return None
    return Multilingual.of(values, folder)


def stored_languages(task_state: Mapping[str, object]) -> Multilingual | None:
    """Return the languages in the state of this plugin's task, if it is multilingual."""
    saved = task_state.get(multilingual.KEY)
    if saved is None:
        return None
    return Multilingual.of(_values("task", saved), "")


def _task_name(config: object, values: Mapping[str, object]) -> object:
    """Return a task's name, which old namespaces of all options have as ``task``."""
    return values.get("task" if isinstance(config, Namespace) else "_name") or "translation"


def _values(part: str, node: object, depth: int = 1) -> dict[str, object]:
    """Return a part of a configuration as plain values by the names of :func:`hints_of`.

    Not deeper ones: a small file can describe a structure that would fill any memory.
    """
    if isinstance(node, DictConfig):
        node = node._value()
    if isinstance(node, Namespace):
        node = vars(node)
    if not isinstance(node, Mapping) or not all(isinstance(key, str) for key in node):
        raise ConfigError(f"its configuration of the {part} is a {type(node).__name__}; {SAVED}")
    values: dict[str, object] = {}
    for name, value in node.items():
        if isinstance(value, ValueNode):
            value = value._value()
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
            raise ConfigError(f"{name}: {REFUSED[name]} is not supported; {SUPPORTED}")
    for name, value in saved.items():
        if name in SAVED_AS_TEXT and isinstance(value, str) and re.fullmatch(r"\d{1,9}", value):
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
    if get_origin(hint) is Union:
        hint = next(arg for arg in get_args(hint) if arg is not type(None))
    if get_origin(hint) is list or name == "verifier_feature_layers":
        return LAYER_NUMBERS
    if isinstance(hint, type) and issubclass(hint, Enum):
        return Literal[tuple(str(member.value) for member in hint)]
    if hint is int:
        max_ = next(limit for end, limit in limits.items() if name.endswith(end))
        return Annotated[int, msgspec.Meta(ge=min_, le=max_)]
    return {bool: bool, float: float}.get(hint, TEXT)  # type: ignore[call-overload]


def _warn_of_dropped(part: str, names: list[str]) -> None:
    if names:
        warn_once(
            f"a checkpoint's {part} has unknown fields, which are left out: "
            f"{', '.join(map(shown, names))}"
        )


def architecture(values: Mapping[str, object]) -> str:
    """Return the name of the registered architecture by which a saved model is built.

    An architecture that is not fairseq's is built as its Transformer, even if a user-dir knows it.
    """
    name = values.get("_name") or values.get("arch")
    if not isinstance(name, str):
        raise ConfigError(f"it names no architecture; {SUPPORTED}")
    model = models.ARCH_MODEL_REGISTRY.get(name) or models.MODEL_REGISTRY.get(name)
    if _is_ours(model):
        return name
    if model is None or not (_is_stock(model) and _is_stock(models.ARCH_CONFIG_REGISTRY.get(name))):
        if missing := [needed for needed in ALWAYS_SAVED if values.get(needed) is None]:
            raise ConfigError(
                f"architecture {shown(name)} is unknown, and no Transformer: it has no "
                f"{missing[0]}; {SUPPORTED}"
            )
        warn_once(f"architecture {shown(name)}: unknown to fairseq; built as its Transformer")
        return "transformer"
    if model in (TransformerModel, TransformerAlignModel):
        return name
    raise ConfigError(f"architecture {shown(name)} is not supported; {SUPPORTED}")


def _is_ours(model: type | None) -> bool:
    return model is not None and issubclass(model, (Drafter, AcceptanceHeadModel))


def _is_stock(registered: object) -> bool:
    return registered is None or str(getattr(registered, "__module__", "")).startswith("fairseq.")


@cache
def options_of_fairseq() -> set[str]:
    """Return the options of training, those of registered tasks and the like among them."""
    specdec_plugins.register()
    parser = ArgumentParser(conflict_handler="resolve")
    registries = [TASK_REGISTRY, *(kind["registry"] for kind in REGISTRIES.values())]
    for registered in (item for registry in registries for item in registry.values()):
        ours = registered.__module__.startswith("specdec_plugins.")
        if hasattr(registered, "add_args") and (ours or _is_stock(registered)):
            registered.add_args(parser)
    groups = [group.type for group in fields(FairseqConfig) if is_dataclass(group.type)]
    names = {field.name for group in groups for field in fields(group)}
    chosen = {"task", "pad", "eos", "unk", "_name", "arch", "encoder_langtok", "decoder_langtok"}
    return names | chosen | {*REGISTRIES} | {action.dest for action in parser._actions}


@cache
def known_fields(name: str) -> dict[str, object]:
    """Return the types of an architecture's fields, by name."""
    declared = models.MODEL_DATACLASS_REGISTRY.get(name)
    if declared is not None:
        known = hints_of(declared)
    else:
        model = models.ARCH_MODEL_REGISTRY[name]
        known = hints_of(TransformerConfig) | UNDECLARED | getattr(model, "saved_fields", {})
        if model is TransformerAlignModel:
            known |= ALIGNMENT
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
