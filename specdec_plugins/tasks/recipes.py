"""Recipes: settings of ``fairseq-hydra-train``, as flags of ``fairseq-train``."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from omegaconf import OmegaConf

from specdec_plugins.checkpoints.archive import one_line
from specdec_plugins.files.errors import ConfigError
from specdec_plugins.files.output import JsonObject

#: The project's own recipes, in a clone of it.
CONFIG = Path(__file__).resolve().parents[2] / "config"
if not CONFIG.is_dir():
    # The package is installed; a clone's recipes are those of the folder where a command runs.
    CONFIG = Path("config")


def known(argv: Sequence[str], flags: Iterable[str]) -> tuple[dict[str, str | None], list[str]]:
    """Return the values of some flags by name, and the rest of a command line."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in flags:
        parser.add_argument(flag)
    values, rest = parser.parse_known_args(argv)
    return vars(values), rest


def with_recipe(argv: Sequence[str]) -> list[str]:
    """Return a command line with the flags of its ``--recipe`` before its own, which win.

    A group of which the command line chooses another kind is left out: with ``--lr-scheduler
    inverse_sqrt`` all of a recipe's ``polynomial_decay``. ``--no-SWITCH`` turns off a recipe's
    switch, and ``--SWITCH`` its ``--no-SWITCH``.
    """
    spelled = {"-a": "--arch"}
    values, rest = known([spelled.get(word, word) for word in argv], ["--recipe"])
    if (name := values["recipe"]) is None:
        return list(argv)
    path = Path(name) if name.endswith(".yaml") else CONFIG / f"{name}.yaml"
    if not path.is_file():
        names = ", ".join(sorted(file.stem for file in CONFIG.glob("*.yaml")))
        raise ConfigError(f"--recipe {name}: no such recipe ({names}); or give a file, NAME.yaml")
    try:
        flags = list(_recipe_flags(path, rest))
    except Exception as error:  # of YAML, OmegaConf, or because the file holds something else
        raise ConfigError(
            f"{path}: is no recipe of fairseq-hydra-train, or refers to what it lacks "
            f"({one_line(error)})"
        ) from error
    opposite = {x: "--" + x[5:] if x.startswith("--no-") else "--no-" + x[2:] for x in flags}
    off = {*opposite.values()} & {*rest}
    flags = [flag for flag in flags if opposite[flag] not in off]
    return flags + [argument for argument in rest if argument not in off]


def _recipe_flags(path: Path, argv: Sequence[str]) -> Iterator[str]:
    """Yield a recipe's settings as flags; references in it follow the flags of ``argv``."""
    groups: dict[str, JsonObject] = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    kinds = {group: settings.get("_name") for group, settings in groups.items()}
    names = {(group, field): field for group, settings in groups.items() for field in settings}
    names |= {(g, "_name"): "arch" if g == "model" else g for g, kind in kinds.items() if kind}
    valued = {name for (group, field), name in names.items() if groups[group][field] is not True}
    values, _ = known(argv, map(flag, valued))
    for (group, field), name in names.items():
        if (value := values.get(name)) is not None:
            groups[group][field] = value
    groups = OmegaConf.to_container(OmegaConf.create(groups), resolve=True)
    for (group, field), name in names.items():
        value = groups[group][field]
        # Switches of fairseq's commands are off where they are not named.
        unsaid = value is False or value in ("???", None)
        if groups[group].get("_name") == kinds[group] and not unsaid:
            yield flag(name) if value is True else f"{flag(name)}={value}"


def flag(name: str) -> str:
    """Return an option's flag."""
    return f"--{name.replace('_', '-')}"
