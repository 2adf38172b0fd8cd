"""Recipes: the files of ``fairseq-hydra-train``, as flags of ``fairseq-train``.

A recipe says how to train one model. Both commands read the same file: hydra with
``--config-name``, and ``group.field=value`` for what is to be otherwise; ``specdec-train`` with
``--recipe``, and flags.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException

from specdec_plugins.files.errors import UsageError

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
Groups = dict[str, dict[str, object]]


def with_recipe(argv: Sequence[str]) -> list[str]:
    """Return a command line with the flags of its ``--recipe`` before its own, which win.

    A group of settings is left out when the command line chooses another kind of it: with
    ``--lr-scheduler inverse_sqrt`` none of a recipe's ``polynomial_decay`` is left. A switch that
    the recipe turns on is turned off by ``--no-SWITCH``, and ``--no-SWITCH`` by ``--SWITCH``.
    """
    given, rest = _parser(["--recipe"]).parse_known_args(argv)
    if given.recipe is None:
        return list(argv)
    path = _find(given.recipe)
    own = list(_flags(path, _read(path), rest))
    off = {_opposite(flag) for flag in own} & set(rest)
    return [flag for flag in own if _opposite(flag) not in off] + [
        argument for argument in rest if argument not in off
    ]


def flag_of(field: str) -> str:
    """fairseq's flag for a field of a configuration."""
    return "--" + field.replace("_", "-")


def _parser(flags: Iterable[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in flags:
        parser.add_argument(flag)
    return parser


def _find(name: str) -> Path:
    """Return a file by its path, or by its name one of the project's recipes."""
    path = Path(name) if name.endswith(".yaml") else CONFIG / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in CONFIG.glob("*.yaml"))) or "none here"
        raise UsageError(f"--recipe {name}: no such recipe ({known}); or give a file, NAME.yaml")
    return path


def _read(path: Path) -> Groups:
    try:
        groups = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (OSError, ValueError, yaml.YAMLError) as error:
        fault = " ".join(str(error).split())
        raise UsageError(f"{path}: cannot be read ({fault}); mend it") from error
    if not isinstance(groups, dict) or not groups:
        raise UsageError(f"{path}: holds no settings; give a file of fairseq-hydra-train")
    for group, settings in groups.items():
        if not isinstance(settings, dict):
            raise UsageError(f"{path}: {group} is no group of settings; write them below it")
    return groups


def _flags(path: Path, groups: Groups, argv: Sequence[str]) -> Iterator[str]:
    """The flags of a recipe, without those of groups of which ``argv`` chooses another kind."""
    flags = {
        (group, field): flag_of(field) if field != "_name" else CHOICES.get(group, flag_of(group))
        for group, settings in groups.items()
        for field, value in settings.items()
        if not isinstance(value, bool)
    }
    given = vars(_parser(set(flags.values())).parse_known_args(argv)[0])
    kinds = {group: settings.get("_name") for group, settings in groups.items()}
    for (group, field), flag in flags.items():
        if (value := given[flag[2:].replace("-", "_")]) is not None:
            groups[group][field] = value  # what is to be the same follows it
    try:
        resolved: Any = OmegaConf.to_container(OmegaConf.create(groups), resolve=True)
    except OmegaConfBaseException as error:
        fault = str(error).partition("\n")[0]
        remedy = "mend it"
        if isinstance(error, InterpolationToMissingValueError):
            remedy = f"give {flag_of(fault.rpartition('.')[2])}"
        raise UsageError(f"{path}: {error.full_key}: {fault}; {remedy}") from error
    for group, settings in resolved.items():
        for field, value in settings.items() if settings.get("_name") == kinds[group] else ():
            if value not in (MISSING, None):
                flag = flags.get((group, field), flag_of(field))
                yield _flag(f"{path}: {group}.{field}", flag, value)


def _flag(name: str, flag: str, value: object) -> str:
    if value is True:
        return flag
    if value is False:
        raise UsageError(f"{name} is false, which no flag says; leave it out")
    if isinstance(value, dict):
        raise UsageError(f"{name}: no flag says {value}; give a plain value")
    return f"{flag}={value}"


def _opposite(flag: str) -> str:
    return "--" + flag[5:] if flag.startswith("--no-") else "--no-" + flag[2:]
