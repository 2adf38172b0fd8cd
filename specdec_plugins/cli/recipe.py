"""Recipes: the files of ``fairseq-hydra-train``, as flags of ``fairseq-train``.

A recipe says how to train one model. Both commands read the same file: hydra with
``--config-name``, and ``group.field=value`` for what is to be otherwise; ``specdec-train`` with
``--recipe``, and flags.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from omegaconf import OmegaConf

from specdec_plugins.files.errors import RecipeError

CONFIG = Path(__file__).resolve().parents[2] / "config"
"""The project's own recipes, in a clone of it."""

CHOICES = {
    "task": "--task",
    "model": "--arch",
    "criterion": "--criterion",
    "optimizer": "--optimizer",
    "lr_scheduler": "--lr-scheduler",
}
"""The flag that names what a group of settings is for."""

MISSING = "???"
REFERENCE = re.compile(r"\$\{(\w+)\.(\w+)\}")

Groups = dict[str, dict[str, object]]


def with_recipe(argv: Sequence[str]) -> list[str]:
    """Return a command line with the flags of its ``--recipe`` before its own, which win.

    A group of settings is left out when the command line chooses another kind of it: with
    ``--lr-scheduler inverse_sqrt`` none of a recipe's ``polynomial_decay`` is left. A switch that
    the recipe turns on is turned off by ``--no-SWITCH``, and ``--no-SWITCH`` by ``--SWITCH``.

    Raises:
        RecipeError: there is no such recipe, or it cannot be told by flags.
    """
    parser = _parser(["--recipe"])
    name = parser.parse_known_args(argv)[0].recipe
    if name is None:
        return list(argv)
    path = _find(name)
    groups = _read(path)
    references = {flag_of(found[2]) for found in map(_reference, _values(groups)) if found}
    flags = ["--recipe", *CHOICES.values(), *references]
    given, others = _parser(flags).parse_known_args(argv)
    named = {flag: getattr(given, flag[2:].replace("-", "_")) for flag in flags[1:]}
    chosen = {flag: value for flag, value in named.items() if value is not None}
    own = _flags(path, groups, chosen)
    off = {_opposite(flag) for flag in own} & set(others)
    own = [flag for flag in own if _opposite(flag) not in off]
    rest = [argument for argument in others if argument not in off]
    return [*own, *(f"{flag}={value}" for flag, value in chosen.items()), *rest]


def flag_of(field: str) -> str:
    """fairseq's flag for a field of a configuration."""
    return "--" + field.replace("_", "-")


def _parser(flags: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in flags:
        parser.add_argument(flag)
    return parser


def _find(name: str) -> Path:
    """Return a file by its path, or by its name one of the project's recipes."""
    path = Path(name) if name.endswith(".yaml") else CONFIG / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in CONFIG.glob("*.yaml"))) or "none here"
        raise RecipeError(f"--recipe {name}: no such recipe ({known}); or give a file, NAME.yaml")
    return path


def _read(path: Path) -> Groups:
    try:
        groups = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (OSError, ValueError, yaml.YAMLError) as error:
        fault = " ".join(str(error).split())
        raise RecipeError(f"{path}: cannot be read ({fault}); mend it") from error
    if not isinstance(groups, dict) or not groups:
        raise RecipeError(f"{path}: holds no settings; give a file of fairseq-hydra-train")
    for group, settings in groups.items():
        if not isinstance(settings, dict):
            raise RecipeError(f"{path}: {group} is no group of settings; write them below it")
    return groups


def _values(groups: Groups) -> list[object]:
    return [value for settings in groups.values() for value in settings.values()]


def _reference(value: object) -> re.Match[str] | None:
    """Return the group and the field that a value is to be the same as."""
    return REFERENCE.fullmatch(value) if isinstance(value, str) else None


def _flags(path: Path, groups: Groups, given: Mapping[str, str]) -> list[str]:
    """Return the flags of a recipe, without those of groups of which another kind was given."""
    flags = []
    for group, settings in groups.items():
        choice = CHOICES.get(group)
        if choice and given.get(choice, settings.get("_name")) != settings.get("_name"):
            continue
        for field, value in settings.items():
            name = f"{path}: {group}.{field}"
            flag = choice or flag_of(group) if field == "_name" else flag_of(field)
            if (found := _reference(value)) is not None:
                other = flag_of(found[2])
                value = given.get(other, groups.get(found[1], {}).get(found[2], MISSING))
                if value == MISSING:
                    raise RecipeError(f"{name} is that of {other}; give {other}")
            if value != MISSING and value is not None:
                flags.append(_flag(name, flag, value))
    return flags


def _flag(name: str, flag: str, value: object) -> str:
    if value is True:
        return flag
    if value is False:
        raise RecipeError(f"{name} is false, which no flag says; leave it out")
    if isinstance(value, dict) or "${" in str(value):
        raise RecipeError(f"{name}: no flag says {value}; give a plain value")
    return f"{flag}={value}"


def _opposite(flag: str) -> str:
    return "--" + flag[5:] if flag.startswith("--no-") else "--no-" + flag[2:]
