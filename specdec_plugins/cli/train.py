"""``fairseq-train`` with this plugin and its task, which need not be named, and with recipes.

``--user-dir specdec_plugins`` may be given all the same, whatever folder this is. A recipe is a
file of ``fairseq-hydra-train``: ``--recipe NAME`` begins with the flags of ``config/NAME.yaml``,
and ``--recipe FILE.yaml`` with those of a file. Flags win over it.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException

import specdec_plugins
from specdec_plugins.checkpoints.archive import one_line
from specdec_plugins.checkpoints.loading import load_state
from specdec_plugins.files.command import command, program
from specdec_plugins.files.errors import CheckpointError, InferenceError, UsageError, explained
from specdec_plugins.files.lock import LOCK, locked
from specdec_plugins.files.output import LARGEST

PROG = program("train.py")
logger = logging.getLogger(PROG)

TASK = "translation_specdec"
PACKAGE = Path(specdec_plugins.__path__[0])
"""The folder as it was imported: by another of its names fairseq would import it once more."""
CONFIG = Path(__file__).resolve().parents[2] / "config"
"""The project's own recipes, in a clone of it."""
CHOICES = {
    "task": "--task",
    "model": "--arch",
    "criterion": "--criterion",
    "optimizer": "--optimizer",
    "lr_scheduler": "--lr-scheduler",
}
"""Flags that choose the kind of a group's settings."""
MISSING = "???"
Groups = dict[str, dict[str, object]]


@command(PROG, logs=False)
def main(argv: Sequence[str]) -> None:
    """Train; fairseq reads the command line itself."""
    whole = with_plugin(with_recipe(argv))
    if not any(known(whole, ["--arch", "-a"])[0].values()) and not {"-h", "--help"} & {*argv}:
        raise UsageError("give a folder of binarised text, and --recipe or --arch; see --help")
    with save_dir_reserved(whole):
        train(whole)


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
    folder = values["user_dir"]
    if folder is None or Path(folder).name == PACKAGE.name:
        folder = str(PACKAGE)
    return [*others, "--user-dir", folder, "--task", values["task"] or TASK]


def with_recipe(argv: Sequence[str]) -> list[str]:
    """Return a command line with the flags of its ``--recipe`` before its own, which win.

    A group of settings is left out when the command line chooses another kind of it: with
    ``--lr-scheduler inverse_sqrt`` none of a recipe's ``polynomial_decay`` is left. A switch that
    the recipe turns on is turned off by ``--no-SWITCH``, and ``--no-SWITCH`` by ``--SWITCH``.
    """
    values, rest = known(argv, ["--recipe"])
    if (name := values["recipe"]) is None:
        return list(argv)
    path = Path(name) if name.endswith(".yaml") else CONFIG / f"{name}.yaml"
    if not path.is_file():
        names = ", ".join(sorted(file.stem for file in CONFIG.glob("*.yaml"))) or "none here"
        raise UsageError(f"--recipe {name}: no such recipe ({names}); or give a file, NAME.yaml")
    flags = list(_flags(path, _read(path), rest))
    off = {_opposite(flag) for flag in flags} & {*rest}
    return [
        *(flag for flag in flags if _opposite(flag) not in off),
        *(argument for argument in rest if argument not in off),
    ]


def flag_of(field: str) -> str:
    """Return fairseq's flag for a field of a configuration."""
    return "--" + field.replace("_", "-")


def _read(path: Path) -> Groups:
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST).decode()
        groups = yaml.safe_load(text)
        for group, settings in groups.items():
            for field, value in settings.items():
                # Deep values are no flags; and names for parts of them could make them endless.
                items = value if isinstance(value, list) else [value]
                if any(isinstance(item, (dict, list)) for item in items):
                    raise UsageError(f"{path}: {group}.{field}: no flag says this; give a value")
        plain: Any = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except (OSError, ValueError, RecursionError, AttributeError, yaml.YAMLError) as error:
        if isinstance(error, UsageError):
            raise
        fault = " ".join(str(error).split())
        raise UsageError(f"{path}: is no recipe of fairseq-hydra-train ({fault})") from error
    return plain


def _flags(path: Path, groups: Groups, argv: Sequence[str]) -> Iterator[str]:
    """Yield a recipe's flags, without groups whose kind ``argv`` chooses anew."""
    flags = {
        (group, field): flag_of(field) if field != "_name" else CHOICES.get(group, flag_of(group))
        for group, settings in groups.items()
        for field, value in settings.items()
        if not isinstance(value, bool)
    }
    values = known(argv, {*flags.values()})[0]
    kinds = {group: settings.get("_name") for group, settings in groups.items()}
    for (group, field), flag in flags.items():
        if (value := values[flag[2:].replace("-", "_")]) is not None:
            groups[group][field] = value  # references to it follow
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
            flag = flags.get((group, field), flag_of(field))
            if value is False:
                raise UsageError(f"{path}: {group}.{field} is false: no flag says so; leave it out")
            if value not in (MISSING, None):
                yield flag if value is True else f"{flag}={value}"


def _opposite(flag: str) -> str:
    return "--" + flag[5:] if flag.startswith("--no-") else "--no-" + flag[2:]


@contextmanager
def save_dir_reserved(argv: Sequence[str]) -> Iterator[None]:
    """Have the folder of checkpoints for this training alone.

    Only the first process of a distributed training writes there, and only it takes the lock: the
    others are known by ``--distributed-rank``, or by the variables of torchrun and Slurm.
    """
    values, _ = known(argv, ["--save-dir", "--distributed-rank"])
    rank = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0"
    if (values["distributed_rank"] or rank) != "0" or {"-h", "--help", "--no-save"} & {*argv}:
        yield
        return
    folder = Path(values["save_dir"] or "checkpoints")
    output = f"--save-dir {folder}"
    with ExitStack() as held:
        with explained(f"{output}: cannot be written to", "name a folder of yours"):
            folder.mkdir(parents=True, exist_ok=True)
            held.callback(_remove_if_empty, folder)
            held.enter_context(locked(output, folder / LOCK))
        yield


def _remove_if_empty(folder: Path) -> None:
    """Leave nothing of a training that was refused."""
    with suppress(OSError):
        folder.rmdir()


def train(argv: Sequence[str]) -> None:
    """Have fairseq train by the flags of ``fairseq-train``."""
    # Here, since this sets up the logging of a training.
    from fairseq_cli.train import cli_main

    sys.argv[1:] = argv
    try:
        cli_main()
    except FileNotFoundError as error:
        fault = f"{error.filename}: no such file or folder" if error.filename else str(error)
        raise InferenceError(f"{fault}; check the path") from error
    except FloatingPointError as error:
        raise InferenceError(
            f"training went wrong ({one_line(error)}); give a lower --lr, or --clip-norm"
        ) from error
    except ValueError as error:
        if str(error).startswith("--"):
            raise UsageError(str(error)) from error
        raise  # of no flag: where it came from is of use
    except Exception as error:
        # fairseq says that something does not fit, and not what.
        if not str(error).startswith("Cannot load model parameters from checkpoint"):
            raise
        reason = changed_options(argv) or one_line(error.__context__ or error)
        raise CheckpointError(
            f"{one_line(error)} ({reason}); give another --save-dir to begin anew"
        ) from error


def changed_options(argv: Sequence[str]) -> str:
    """Return the options of a model that are not those of the one in ``--save-dir``."""
    from fairseq import options

    try:
        args = vars(options.parse_args_and_arch(options.get_training_parser(), list(argv)))
        saved = vars(load_state(Path(args["save_dir"]) / "checkpoint_last.pt")["cfg"]["model"])
    except (RuntimeError, KeyError, SystemExit):  # no such file, or flags that fairseq refuses
        return ""
    differ = [name for name in saved if name in args and args[name] != saved[name]]
    return ", ".join(f"{flag_of(name)} {args[name]}: it has {saved[name]}" for name in differ)
