"""``fairseq-train`` with this plugin and its task, which need not be named, and with recipes.

``--user-dir specdec_plugins`` may be given all the same, whatever folder this is. A recipe is a
file of ``fairseq-hydra-train``: ``--recipe NAME`` begins with the flags of ``config/NAME.yaml``,
and ``--recipe FILE.yaml`` with those of a file. Flags win over it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from omegaconf import OmegaConf

import specdec_plugins
from specdec_plugins.checkpoints.archive import one_line
from specdec_plugins.files.command import command
from specdec_plugins.files.errors import InferenceError, UsageError
from specdec_plugins.files.output import LOCK, JsonObject, locked

TASK = "translation_specdec"
PACKAGE = Path(specdec_plugins.__path__[0])
"""The folder as it was imported: by another of its names fairseq would import it once more."""
CONFIG = Path(__file__).resolve().parents[2] / "config"
"""The project's own recipes, in a clone of it."""


@command(logs=False)
def main(argv: Sequence[str]) -> None:
    """Train; fairseq reads the command line itself."""
    whole = with_plugin(with_recipe(argv))
    if not any(known(whole, ["--arch", "-a"])[0].values()) and not {"-h", "--help"} & {*argv}:
        raise UsageError("give a folder of binarised text, and --recipe or --arch; see --help")
    sys.argv[1:] = whole
    with save_dir_reserved(whole):
        # Here, since this sets up the logging of a training.
        from fairseq_cli.train import cli_main

        try:
            cli_main()
        except FileNotFoundError as error:
            raise InferenceError(f"{error.filename or error}: no such file or folder") from error
        except FloatingPointError as error:
            remedy = "give a lower --lr, or --clip-norm"
            raise InferenceError(f"training went wrong ({one_line(error)}); {remedy}") from error
        except Exception as error:
            if str(error).startswith("--"):
                raise UsageError(str(error)) from error
            if str(error).startswith("Cannot load model parameters from checkpoint"):
                raise InferenceError(one_line(error)) from error
            raise  # where it came from is of use


def known(argv: Sequence[str], flags: Iterable[str]) -> tuple[dict[str, str | None], list[str]]:
    """Return the values of some flags by name, and the rest of a command line."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in flags:
        parser.add_argument(flag)
    values, rest = parser.parse_known_args(argv)
    return vars(values), rest


def with_plugin(argv: Sequence[str]) -> list[str]:
    """Return a command line that names this package's folder and task, unless it names others."""
    values, others = known(argv, ["--user-dir", "--task"])
    folder = Path(values["user_dir"] or PACKAGE)
    folder = PACKAGE if folder.name == PACKAGE.name else folder
    return [*others, "--user-dir", str(folder), "--task", values["task"] or TASK]


def with_recipe(argv: Sequence[str]) -> list[str]:
    """Return a command line with the flags of its ``--recipe`` before its own, which win.

    A group of which the command line chooses another kind is left out: with ``--lr-scheduler
    inverse_sqrt`` all of a recipe's ``polynomial_decay``. ``--no-SWITCH`` turns off a recipe's
    switch, and ``--SWITCH`` its ``--no-SWITCH``.
    """
    values, rest = known(argv, ["--recipe"])
    if (name := values["recipe"]) is None:
        return list(argv)
    path = Path(name) if name.endswith(".yaml") else CONFIG / f"{name}.yaml"
    if not path.is_file():
        names = ", ".join(sorted(file.stem for file in CONFIG.glob("*.yaml")))
        raise UsageError(f"--recipe {name}: no such recipe ({names}); or give a file, NAME.yaml")
    try:
        flags = list(_recipe_flags(path, rest))
    except Exception as error:  # of YAML, OmegaConf, or because the file holds something else
        fault = "is no recipe of fairseq-hydra-train, or refers to what it lacks"
        raise UsageError(f"{path}: {fault} ({one_line(error)})") from error
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
    values, _ = known(argv, map(_flag, valued))
    for (group, field), name in names.items():
        if (value := values.get(name)) is not None:
            groups[group][field] = value
    groups = OmegaConf.to_container(OmegaConf.create(groups), resolve=True)
    for (group, field), name in names.items():
        value = groups[group][field]
        if groups[group].get("_name") == kinds[group] and value not in ("???", None):
            yield _flag(name) if value is True else f"{_flag(name)}={value}"


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@contextmanager
def save_dir_reserved(argv: Sequence[str]) -> Iterator[None]:
    """Have the folder of checkpoints for this training alone; of a distributed one only the first
    process writes there, and takes the lock."""
    values, _ = known(argv, ["--save-dir", "--distributed-rank"])
    rank = values["distributed_rank"] or os.environ.get("RANK") or os.environ.get("SLURM_PROCID")
    if rank not in (None, "0") or {"-h", "--help", "--no-save"} & {*argv}:
        yield
        return
    folder = Path(values["save_dir"] or "checkpoints")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(f"--save-dir {folder}", folder / LOCK):
        yield
