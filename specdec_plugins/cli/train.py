"""Train by fairseq-train, with recipes, and with this plugin and its task as defaults.

    specdec-train BIN_DIR --recipe multi30k_verifier --save-dir runs/verifier
    specdec-train BIN_DIR --recipe FILE.yaml --save-dir runs/verifier --max-update 9000

--recipe NAME begins with the settings of config/NAME.yaml in a clone of this project, and --recipe
FILE.yaml with those of a file; it is a configuration of fairseq-hydra-train. Flags override it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import specdec_plugins
from specdec_plugins.checkpoints.archive import one_line
from specdec_plugins.checkpoints.loading import load_state
from specdec_plugins.files.command import command, put
from specdec_plugins.files.errors import ConfigError, InferenceError
from specdec_plugins.files.output import LOCK, locked
from specdec_plugins.tasks.recipes import flag, known, with_recipe

TASK = "translation_specdec"
UNFIT = "Cannot load model parameters from checkpoint "
#: The folder as it was imported: by another of its names fairseq would import it once more.
PACKAGE = Path(specdec_plugins.__path__[0])


@command(logs=False)
def main(argv: Sequence[str]) -> None:
    """Train; fairseq reads the command line itself."""
    whole = with_plugin(with_recipe(argv))
    if {"-h", "--help"} & {*argv}:
        put(f"{__doc__}\nAll other flags are fairseq's:\n\n")
    elif not any(known(whole, ["--arch", "-a"])[0].values()):
        raise ConfigError("give a folder of binarised text, and --recipe or --arch; see --help")
    sys.argv[1:] = whole
    with save_dir_lock(whole):
        # Here, since this sets up the logging of a training.
        from fairseq_cli.train import cli_main

        try:
            cli_main()
        except FileNotFoundError as error:
            raise InferenceError(f"{error.filename or error}: no such file or folder") from error
        except FloatingPointError as error:
            raise InferenceError(
                f"training went wrong ({one_line(error)}); give a lower --lr, or --clip-norm"
            ) from error
        except Exception as error:
            if str(error).startswith("--"):
                raise ConfigError(str(error)) from error
            if str(error).startswith(UNFIT):
                raise InferenceError(f"{one_line(error)} ({unfit(whole, error)})") from error
            raise  # where it came from is of use


def with_plugin(argv: Sequence[str]) -> list[str]:
    """Return a command line that names this package's folder and task, unless it names others."""
    values, others = known(argv, ["--user-dir", "--task"])
    folder = Path(values["user_dir"] or PACKAGE)
    if folder.name == PACKAGE.name:
        folder = PACKAGE
    return [*others, "--user-dir", str(folder), "--task", values["task"] or TASK]


def save_dir_lock(argv: Sequence[str]) -> AbstractContextManager[None]:
    """Return a lock by which this training has its folder of checkpoints alone; of a distributed
    one only the first process writes there, and takes the lock."""
    values, _ = known(argv, ["--save-dir", "--distributed-rank"])
    rank = values["distributed_rank"] or os.environ.get("RANK") or os.environ.get("SLURM_PROCID")
    if rank not in (None, "0") or {"-h", "--help", "--no-save"} & {*argv}:
        return nullcontext()
    folder = Path(values["save_dir"] or "checkpoints")
    folder.mkdir(parents=True, exist_ok=True)
    return locked(f"--save-dir {folder}", folder / LOCK)


def unfit(argv: Sequence[str], error: Exception) -> str:
    """Return the options of a model that differ from those of its checkpoint."""
    from fairseq import options

    args = vars(options.parse_args_and_arch(options.get_training_parser(), list(argv)))
    checkpoint = str(error).removeprefix(UNFIT).partition(";")[0]
    saved = vars(load_state(checkpoint)["cfg"]["model"])
    differ = [name for name in saved if name in args and args[name] != saved[name]]
    return ", ".join(f"{flag(name)} {args[name]}: it has {saved[name]}" for name in differ)
