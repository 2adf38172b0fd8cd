"""Command-line flags that every translating command shares, and the settings made of them."""

from __future__ import annotations

import argparse
import os
from argparse import Namespace
from collections.abc import Collection, Sequence
from dataclasses import Field
from pathlib import Path
from textwrap import fill
from types import NoneType
from typing import Any, NoReturn, get_args

import torch
from fairseq import options, utils
from fairseq.dataclass.configs import CommonConfig
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.registry import REGISTRIES

from specdec_plugins.checkpoints.pair import split_models
from specdec_plugins.decoding.acceptance import RULES, choose_rule
from specdec_plugins.decoding.controllers.base import CONTROLLERS, controller_of
from specdec_plugins.decoding.limits import OF_SEARCH, REFUSED, GenerationLimits
from specdec_plugins.decoding.options import option_fields, option_types
from specdec_plugins.files.command import Parser
from specdec_plugins.files.errors import ConfigError, InferenceError
from specdec_plugins.files.output import JsonObject
from specdec_plugins.inference.drafts.base import DRAFTS
from specdec_plugins.inference.pair_folder import (
    ENCODERS,
    VERIFIER,
    folder_of_pair,
    pair_settings,
    segmentation_beside,
    verifier_settings,
)
from specdec_plugins.inference.settings import Settings
from specdec_plugins.tasks.recipes import flag
from specdec_plugins.verifiers.families import limits_of
from specdec_plugins.verifiers.folder import is_folder

ENGINE_FLAGS = ("engine", "precision", "drafter_precision", "ar_backend")
DRAFT_FLAGS = ("strategy", "drafts", "block_size")
#: Flags that are not spelled as their settings.
SPELLED = {
    "ar_backend": ["--AR-backend"],
    "source_lang": ["-s", "--source-lang"],
    "target_lang": ["-t", "--target-lang"],
}
#: Options of a verifier that commands take without the other settings.
OF_VERIFIER = ("source_lang", "target_lang", "as_transformer")
#: Shared flags that ``--help`` explains; it names all others.
SHOWN = (
    *("help", "data", "path", "AR_path", "source_lang", "target_lang", "batch", "beam", "nbest"),
    "segmented",
    *(*DRAFT_FLAGS, "controller", "beta", "tau", "sampling", *ENGINE_FLAGS, "cpu"),
    *("keep_bpe", "quiet", "no_progress_bar"),
)
#: Flags that change the output of fairseq's own commands and are not honoured, as ``REFUSED``.
NOT_OF_TEXT = (
    ("model_overrides", "--model-overrides", "{}"),
    ("num_shards", "--num-shards", 1),
    ("prefix_size", "--prefix-size", 0),
)
FAIRSEQ = (
    "fairseq's generation flags work, too: --max-len-a, --max-len-b, --min-len, --lenpen, "
    "--unkpen, --temperature, --unnormalized, --no-repeat-ngram-size, --match-source-len, "
    "--diverse-beam-groups, --diversity-rate, --constraints (after tabs in lines), --seed, "
    "--user-dir, --tokenizer, --bpe ...; --fp16, --bf16 and --fp64 are short forms of --precision"
)
PRECISION_FLAGS = {"--fp16": "float16", "--bf16": "bfloat16", "--fp64": "float64"}


class TranslationParser(Parser):
    """A parser of the shared flags and fairseq's, to which a command adds its own.

    Flags that a command adds to ``group`` or ``output`` are explained, the others if in ``shown``.
    """

    def __init__(
        self,
        description: str | None,
        argv: Sequence[str],
        shown: Collection[str] = SHOWN,
    ) -> None:
        """Look in ``argv`` for ``--user-dir``, whose modules may bring tokenizers and BPEs."""
        super().__init__(description, "%(prog)s PAIR [flag ...]")
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--user-dir", type=Path, nargs="?")
        folder = parser.parse_known_args(argv)[0].user_dir
        if folder and folder.resolve().name != "specdec_plugins":
            if not folder.exists():
                self.error(f"--user-dir {folder}: no such folder")
            utils.import_user_module(Namespace(user_dir=str(folder)))
        # A flag of a single run may take several values of a command.
        self.group = self.add_argument_group("what to translate", conflict_handler="resolve")
        self.drafts = self.add_argument_group("how much to draft")
        self.engine = self.add_argument_group("what runs it")
        self.output = self.add_argument_group("output")
        self._add_flags()
        self._hidden = {action.dest for action in self._actions} - {*shown}

    def parse(self, argv: Sequence[str]) -> Namespace:
        """Parse a command line."""
        explained = {action.dest for action in self._actions} - self._hidden
        for group in (self.group, self.drafts, self.engine, self.output):
            also = [a.option_strings[-1] for a in group._group_actions if a.dest in self._hidden]
            if also:
                group.description = _filled(f"also: {', '.join(also)}")
        # Last of all: fairseq leaves out those of its flags that are there already.
        options.add_generation_args(self)
        add_encoder_flags(self)
        group = self.add_argument_group("fairseq", _filled(FAIRSEQ))
        group.add_argument("--task", help="any: the task is always our own")
        gen_parser_from_dataclass(group, CommonConfig())
        options.add_dataset_args(self, gen=True)
        # What is not given of these is that of the model's folder.
        self.set_defaults(
            **dict.fromkeys([*option_fields(GenerationLimits), "no_repeat_ngram_size"])
        )
        for action in self._actions:
            if action.dest not in explained:
                action.help = argparse.SUPPRESS
        return self.parse_args(argv)

    def error(self, message: str) -> NoReturn:
        """Exit with one line, which names the flag of a text that stands without it."""
        files = [word for word in message.split() if os.path.exists(word)]
        if files and message.startswith("unrecognized arguments"):
            message += f"; a text is given by --input-path {files[0]}"
        super().error(message)

    def _add_flags(self) -> None:
        add = self.group.add_argument
        add(
            "data",
            metavar="PAIR",
            help="a pair's folder, a verifier's checkpoint or a folder of transformers; with "
            "--path or --AR-path, the folder of dict.{source,target}.txt and, for ordinary text, "
            "of codes or a SentencePiece model",
        )
        add("--dictionaries", metavar="DIR", type=Path, help="of a verifier (its own folder)")
        add("--path", metavar="FILE", help="drafter checkpoint, or drafter.pt:verifier.pt")
        add("--AR-path", metavar="FILE", help="verifier checkpoint")
        add("--segmented", action="store_true", help="text is segmented already")
        self.engine.add_argument("--cpu", action="store_true", help="use no GPU")
        self.output.add_argument("--quiet", action="store_true", help="print no report")
        self.output.add_argument("--no-progress-bar", action="store_true", help="hide the bar")
        groups = dict.fromkeys(option_fields(Settings), self.group)
        groups |= dict.fromkeys(DRAFT_FLAGS, self.drafts) | dict.fromkeys(ENGINE_FLAGS, self.engine)
        groups["keep_bpe"] = self.output
        owners: tuple[type, ...] = (Settings, *RULES, GenerationLimits, *CONTROLLERS.values())
        kinds = option_types(*owners)
        for name, declared in option_fields(*owners).items():
            if declared.metadata["help"]:
                _add_option(groups.get(name, self.drafts), declared, kinds[name])
        for spelled, precision in PRECISION_FLAGS.items():
            self.engine.add_argument(
                spelled,
                action="store_const",
                const=precision,
                dest="precision",
                help=argparse.SUPPRESS,
            )
        self.drafts.add_argument("--drafts", help="; ".join(k.help for k in DRAFTS.values()))
        self.drafts.add_argument(
            "--controller",
            metavar="NAME",
            default="auto",
            help="; ".join(f"{kind.name} ({kind.help})" for kind in CONTROLLERS.values()),
        )


def _filled(text: str) -> str:
    return fill(text, width=96, subsequent_indent="    ", break_on_hyphens=False)


def _add_option(group: argparse._ActionsContainer, declared: Field[Any], hint: Any) -> None:
    """Add the flag of an option, whose type is ``hint``."""
    name = declared.name
    choices = declared.metadata["choices"]
    kind = next((part for part in get_args(hint) if part is not NoneType), hint)
    about: JsonObject = {"default": declared.default, "help": declared.metadata["help"]}
    if kind is bool:
        about["action"] = "store_true"
    else:
        metavar = None if choices else name.rpartition("_")[2].upper()
        about |= {"type": kind, "choices": choices, "metavar": metavar}
    group.add_argument(*SPELLED.get(name, [flag(name)]), dest=name, **about)


def add_encoder_flags(parser: argparse.ArgumentParser) -> None:
    """Add fairseq's ``--tokenizer`` and ``--bpe``, and the options of each of them."""
    for name in ENCODERS:
        group = parser.add_argument_group(name)
        group.add_argument(f"--{name}", choices=list(REGISTRIES[name]["registry"]))
        for config in REGISTRIES[name]["dataclass_registry"].values():
            if config is not None:
                gen_parser_from_dataclass(group, config())


def add_verifier_flags(
    parser: argparse.ArgumentParser, verifier: str, name: str = "VERIFIER", nargs: str | None = None
) -> None:
    """Add the argument ``verifier``, and flags for its dictionaries and languages.

    Args:
        verifier: its help.
        name: as the help shows it.
        nargs: "+" for a list of several.
    """
    add = parser.add_argument
    add("verifier", metavar=name, nargs=nargs, type=Path, help=verifier)
    add("--dictionaries", metavar="DIR", type=Path, help="default: the folder of the checkpoint")
    for name in OF_VERIFIER:
        _add_option(parser, option_fields(Settings)[name], option_types(Settings)[name])


def settings_of_verifier(args: Namespace, **options: object) -> Settings:
    """Return settings of greedy decoding by a command line's VERIFIER; ``options`` win."""
    values = {name: getattr(args, name) for name in OF_VERIFIER}
    values |= verifier_settings(args.verifier, args.dictionaries)
    return Settings(**{**values, "strategy": "AR", **options})


def device_of(args: Namespace) -> str:
    """Return the device that a command line's ``--cpu`` leaves."""
    return "cuda" if torch.cuda.is_available() and not args.cpu else "cpu"


def encoder_options(args: Namespace) -> JsonObject:
    """Return the options of a command line's tokenizer and BPE, under fairseq's names.

    Raises:
        ConfigError: an option is of a tokenizer or BPE that is not named.
    """
    chosen: JsonObject = {}
    others: JsonObject = {}
    for name in ENCODERS:
        for kind, config in REGISTRIES[name]["dataclass_registry"].items():
            options = chosen if kind == getattr(args, name) else others
            options |= vars(config())
    for name in others.keys() - chosen.keys() - {*OF_VERIFIER}:
        if getattr(args, name, others[name]) != others[name]:
            raise ConfigError(f"{flag(name)}: is of a --tokenizer or --bpe that is not named")
    return {name: getattr(args, name) for name in chosen if hasattr(args, name)}


def _models_and_text(args: Namespace) -> JsonObject:
    """Return checkpoints, tokenizer and BPE: those of the flags, or of a pair's folder."""
    chosen = {name: getattr(args, name) for name in ENCODERS if getattr(args, name) is not None}
    data = Path(args.data)
    named = {name: path for name, path in (("path", args.path), ("ar_path", args.AR_path)) if path}
    if not named and not data.exists():
        raise InferenceError(f"{data}: no such file or folder")
    has_models = is_folder(data) or (folder_of_pair(data) / VERIFIER).is_file()
    if data.is_file() or (has_models and not named):
        settings = pair_settings(data, args.dictionaries) | named
    else:
        texts = args.dictionaries or data
        settings = {"data": str(texts), "path": args.path, "ar_path": args.AR_path}
        if args.path and not args.AR_path:
            drafters, verifiers = split_models(args.path)
            settings["path"] = next(iter(drafters), None)
            beside = data / VERIFIER
            lends = args.AR_path is None and beside.is_file()
            settings["ar_path"] = next(iter(verifiers), str(beside) if lends else None)
            settings["ensemble"] = tuple(verifiers[1:])
        if not chosen:
            settings |= segmentation_beside(texts)
    if args.segmented:
        settings |= {"tokenizer": None, "bpe": None}
    options = {**settings.get("encoder_options", {}), **encoder_options(args)}
    return {**settings, **chosen, "encoder_options": options}


def make_settings(args: Namespace) -> Settings:
    """Return the settings of a parsed command line."""
    for name, spelled, nothing in (*REFUSED, *NOT_OF_TEXT):
        value = getattr(args, name)
        if value not in (None, nothing):
            raise ValueError(
                f"{spelled} {value}: is not supported here; fairseq's own commands have it"
            )
    limits = {
        name: value
        for name in option_fields(GenerationLimits)
        if (value := getattr(args, name)) is not None
    }
    settings = {name: getattr(args, name) for name in option_fields(Settings)}
    models = _models_and_text(args)
    limits = limits_of(models["ar_path"]) | limits
    return Settings(
        **{**settings, **models},
        post_process=args.post_process,
        search_options={
            name: getattr(args, name)
            for name, _, nothing in OF_SEARCH
            if getattr(args, name) != nothing
        },
        rule=choose_rule(vars(args)),
        controller=controller_of(vars(args)),
        limits=GenerationLimits(**limits, normalize_scores=not args.unnormalized),
        device=device_of(args),
        scores=False,  # which no command prints
    )
