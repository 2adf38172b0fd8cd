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
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

import specdec_plugins
from specdec_plugins.checkpoints.archive import one_line
from specdec_plugins.files.command import command, program
from specdec_plugins.files.errors import InferenceError, UsageError, explained
from specdec_plugins.files.output import LOCK, locked

PROG = program("train.py")
TASK = "translation_specdec"
PACKAGE = Path(specdec_plugins.__path__[0])
"""The folder as it was imported: by another of its names fairseq would import it once more."""
CONFIG = Path(__file__).resolve().parents[2] / "config"
"""The project's own recipes, in a clone of it."""


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
    try:
        flags = list(_recipe_flags(path, rest))
    except Exception as error:  # of YAML, OmegaConf, or because the file holds something else
        raise UsageError(
            f"{path}: is no recipe of fairseq-hydra-train, or a value that it refers to is missing "
            f"here ({one_line(error)})"
        ) from error
    opposites = {
        "--" + flag[5:] if flag.startswith("--no-") else "--no-" + flag[2:]: flag for flag in flags
    }
    off = opposites.keys() & {*rest}
    flags = [flag for flag in flags if flag not in {opposites[switch] for switch in off}]
    return flags + [argument for argument in rest if argument not in off]


def _recipe_flags(path: Path, argv: Sequence[str]) -> Iterator[str]:
    """Yield a recipe's settings as flags; references in it follow the flags of ``argv``."""
    groups: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    kinds = {group: settings.get("_name") for group, settings in groups.items()}
    flags = {}
    for group, settings in groups.items():
        for field in settings:
            named = ("arch" if group == "model" else group) if field == "_name" else field
            flags[group, field] = "--" + named.replace("_", "-")
    valued = {flag for (group, field), flag in flags.items() if groups[group][field] is not True}
    values, _ = known(argv, valued)
    for (group, field), flag in flags.items():
        if (value := values.get(flag[2:].replace("-", "_"))) is not None:
            groups[group][field] = value
    resolved: Any = OmegaConf.to_container(OmegaConf.create(groups), resolve=True)
    for (group, field), flag in flags.items():
        value = resolved[group][field]
        if resolved[group].get("_name") == kinds[group] and value not in ("???", None):
            yield flag if value is True else f"{flag}={value}"


@contextmanager
def save_dir_reserved(argv: Sequence[str]) -> Iterator[None]:
    """Have the folder of checkpoints for this training alone.

    Only the first process of a distributed training writes there, and only it takes the lock: the
    others are known by ``--distributed-rank``, or by the variables of torchrun and Slurm.
    """
    values, _ = known(argv, ["--save-dir", "--distributed-rank"])
    rank = values["distributed_rank"] or os.environ.get("RANK") or os.environ.get("SLURM_PROCID")
    with ExitStack() as held:
        if rank in (None, "0") and not {"-h", "--help", "--no-save"} & {*argv}:
            folder = Path(values["save_dir"] or "checkpoints")
            with explained(f"--save-dir {folder}: cannot be written to", "name another folder"):
                folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(locked(f"--save-dir {folder}", folder / LOCK))
        yield


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
