"""``fairseq-train`` with this plugin and its task, which need not be named, and with recipes.

``--user-dir specdec_plugins`` may be given all the same, whatever folder this is. ``--recipe NAME``
begins with the flags of ``config/NAME.yaml``, and ``--recipe FILE.yaml`` with those of a file.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import specdec_plugins
from specdec_plugins.checkpoints.archive import one_line
from specdec_plugins.checkpoints.loading import load_state
from specdec_plugins.cli.recipe import flag_of, with_recipe
from specdec_plugins.files.command import command, program
from specdec_plugins.files.errors import CheckpointError, InferenceError, UsageError, explained
from specdec_plugins.files.lock import LOCK, locked

PROG = program("train.py")
logger = logging.getLogger(PROG)

TASK = "translation_specdec"
PACKAGE = Path(specdec_plugins.__path__[0])
"""As it was imported: by another name of the same folder fairseq would import it once more."""


def with_plugin(argv: Sequence[str]) -> list[str]:
    """Return a command line that names this package's folder and task, unless it names others."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--user-dir", type=Path, default=PACKAGE)
    parser.add_argument("--task", default=TASK)
    given, others = parser.parse_known_args(argv)
    folder = PACKAGE if given.user_dir.name == PACKAGE.name else given.user_dir
    return [*others, "--user-dir", str(folder), "--task", given.task]


@contextmanager
def save_dir_reserved(argv: Sequence[str]) -> Iterator[None]:
    """Have the folder of checkpoints for this training alone.

    Only the first process of a distributed training writes there, and only it takes the lock: the
    others are known by ``--distributed-rank``, or by what torchrun and Slurm tell each process.
    """
    rank = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0"
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--save-dir", type=Path, default=Path("checkpoints"))
    parser.add_argument("--distributed-rank", default=rank)
    given, _ = parser.parse_known_args(argv)
    if given.distributed_rank != "0" or {"-h", "--help", "--no-save"} & set(argv):
        yield
        return
    output = f"--save-dir {given.save_dir}"
    with ExitStack() as held:
        with explained(f"{output}: cannot be written to", "name a folder of yours"):
            given.save_dir.mkdir(parents=True, exist_ok=True)
            held.callback(_remove_if_empty, given.save_dir)
            held.enter_context(locked(output, given.save_dir / LOCK))
        yield


def _remove_if_empty(folder: Path) -> None:
    """Leave nothing of a training that was refused."""
    with suppress(OSError):
        folder.rmdir()


@command(PROG, logs=False)
def main(argv: Sequence[str]) -> None:
    """Train; fairseq reads the command line itself."""
    if not argv:
        raise UsageError("give a folder of binarised text, and --recipe or --arch; see --help")
    whole = with_plugin(with_recipe(argv))
    with save_dir_reserved(whole):
        train(whole)


def train(argv: Sequence[str]) -> None:
    """Have fairseq train.

    Args:
        argv: flags of ``fairseq-train``.
    """
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
        # What fairseq raises, and what it was that it puts into these words.
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
