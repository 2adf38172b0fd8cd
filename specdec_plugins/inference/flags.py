"""The flags that every script which translates shares, and the settings that they make."""

from __future__ import annotations

import argparse
import logging
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import torch
from fairseq import options, utils
from fairseq.dataclass.configs import CommonConfig
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.registry import REGISTRIES

from specdec_plugins.checkpoints.architectures import AS_TRANSFORMER
from specdec_plugins.checkpoints.pair import split_pair
from specdec_plugins.decoding.acceptance import RULE_OPTIONS, StrictRule, choose_rule
from specdec_plugins.decoding.controllers.base import controller_of
from specdec_plugins.decoding.engine_choice import ENGINE, OF_DRAFTER, PRECISION
from specdec_plugins.decoding.limits import LARGEST, REFUSED, REPETITION_PENALTY, GenerationLimits
from specdec_plugins.files.command import Parser
from specdec_plugins.files.output import JsonObject
from specdec_plugins.inference.flag_checks import (
    NOT_OF_TEXT,
    SAMPLING,
    check_honoured,
    idle_flags,
    refuse_flags,
)
from specdec_plugins.inference.pair_folder import (
    ENCODERS,
    VERIFIER,
    folder_of_pair,
    pair_settings,
    segmentation_beside,
)
from specdec_plugins.inference.settings import AR_BACKENDS, STRATEGIES, Settings
from specdec_plugins.tasks.decoding_config import ControllerConfig, LimitsConfig, RuleConfig

logger = logging.getLogger(__name__)

LIMITS = (
    "max_len_a",
    "max_len_b",
    "min_len",
    "unkpen",
    "temperature",
    "lenpen",
    "unnormalized",
    REPETITION_PENALTY.name,
)
PLAIN = (
    *("strategy", "batch", "beam", "nbest", "block_size", "source_lang", "target_lang"),
    *("target_prefix", "engine", "drafter_precision", "post_process", "keep_bpe"),
    "as_transformer",
)
"""Flags that are settings of the same name, as they are."""
# Of fairseq's other flags a warning says that they do nothing.
COMMON = ("nbest", "seed", "cpu", "fp16", "bf16", "quiet", "task", "user_dir")
USED = (*ENCODERS, *LIMITS, *SAMPLING, *COMMON)
PRECISION_FLAGS = {"fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}
"""Two of them are fairseq's."""


class TranslationParser(Parser):
    """The flags of translation and fairseq's, to which a script adds its own.

    What a script adds to ``group`` is its own; flags that do nothing are named in a warning.
    """

    def __init__(self, prog: str, description: str | None, argv: Sequence[str]) -> None:
        """``argv`` is looked at for ``--user-dir``, whose modules may bring tokenizers and BPEs."""
        super().__init__(prog, description, f"{prog} PAIR [flag ...]")
        self._import_user_dir(argv)
        self.group = self.add_argument_group("translation")
        self._own = [
            self.group,
            *(self.add_argument_group(title) for title in ("acceptance", "controller", "engine")),
        ]
        self._add_translation_flags()

    def parse(self, argv: Sequence[str]) -> Namespace:
        """Parse a command line, and warn of flags that do nothing."""
        self._add_fairseq_flags()
        self._hide_idle()
        args = self.parse_args(argv)
        self._check_sizes(args)
        args.encoder_options = encoder_options(args)
        own = self._own_names() - idle_flags(args)
        used = {*own, *USED, *args.encoder_options}
        used |= {name for name, *_ in (*REFUSED, *NOT_OF_TEXT)}
        if args.post_process not in (None, "subword_nmt"):
            used.add("post_process")
        flags = (token.split("=")[0] for token in argv if token.startswith("-"))
        actions = self._option_string_actions
        unused = [flag for flag in flags if flag in actions and actions[flag].dest not in used]
        if unused:
            logger.warning("these flags do nothing here: %s", " ".join(dict.fromkeys(unused)))
        return args

    def _own_names(self) -> set[str]:
        return {action.dest for group in self._own for action in group._group_actions}

    def _hide_idle(self) -> None:
        """Show, of fairseq's flags, which are all taken, those that may do something."""
        shown = {*self._own_names(), *USED, "post_process", "help"}
        for name in ENCODERS:
            for config in REGISTRIES[name]["dataclass_registry"].values():
                shown |= set() if config is None else set(vars(config()))
        for action in self._actions:
            if action.dest not in shown:
                action.help = argparse.SUPPRESS
            elif action.dest in PRECISION_FLAGS:
                action.help = f"--precision {PRECISION_FLAGS[action.dest]}"

    def _check_sizes(self, args: Namespace) -> None:
        """Refuse whole numbers that are beyond all use, by their flag."""
        for action in self._actions:
            given = getattr(args, action.dest, None)
            for value in given if isinstance(given, (list, tuple)) else [given]:
                if isinstance(value, int) and abs(value) > LARGEST:
                    self.error(
                        f"{action.option_strings[-1]} {value}: must be from {-LARGEST} to {LARGEST}"
                    )

    def _import_user_dir(self, argv: Sequence[str]) -> None:
        """Import what ``--user-dir`` names, unless it is this plugin."""
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
        parser.add_argument("--user-dir")
        try:
            args, _ = parser.parse_known_args(argv)
        except argparse.ArgumentError:
            return  # it has no value, which is found again when all is parsed
        if args.user_dir and Path(args.user_dir).resolve().name != "specdec_plugins":
            try:
                utils.import_user_module(args)
            except Exception as error:  # whatever the user's modules raise
                reason = str(error) or type(error).__name__
                self.error(f"--user-dir {args.user_dir}: cannot be imported ({reason})")

    def _add_translation_flags(self) -> None:
        add = self.group.add_argument
        _, rules, controllers, engines = self._own
        add(
            "data",
            metavar="PAIR",
            help="a pair's folder; with --path or --AR-path the folder of "
            "dict.{source,target}.txt, and of codes or a SentencePiece model for ordinary text",
        )
        add(
            "--path",
            metavar="FILE",
            help="drafter checkpoint, or drafter.pt:verifier.pt; not needed for AR and fairseq",
        )
        add("--AR-path", metavar="FILE", help="verifier checkpoint")
        add(
            "--strategy",
            choices=STRATEGIES,
            default="specdec",
            help="specdec (default); AR: cached, without a drafter; fairseq: stock beam "
            "search; drafter: the drafter alone, unverified",
        )
        add(
            "--AR-backend",
            choices=AR_BACKENDS,
            default=AR_BACKENDS[0],
            help="what decodes without a drafter: ours; ctranslate2 (CPUs; extra [ctranslate2]); "
            "auto (what specdec-tune found to be faster, else ours)",
        )
        add("--batch", metavar="N", type=int, default=1, help="sentences at a time (1)")
        add("--beam", metavar="N", type=int, default=5, help="for --strategy fairseq (5)")
        add("--closest-to", metavar="FILE", help=argparse.SUPPRESS)
        add(
            "--block-size", metavar="K", type=int, help="slots drafted in a pass (what was trained)"
        )
        gen_parser_from_dataclass(rules, RuleConfig())
        gen_parser_from_dataclass(rules, LimitsConfig())
        gen_parser_from_dataclass(controllers, ControllerConfig())
        add("-s", "--source-lang", metavar="LANG", help="default: the checkpoint's")
        add("-t", "--target-lang", metavar="LANG", help="default: the checkpoint's")
        add(
            "--target-prefix",
            metavar="TEXT",
            help="what every output begins with, in the target's segmented text: a language token, "
            "for instance",
        )
        add(
            "--segmented",
            action="store_true",
            help="text is in tokens, whatever lies in the folder",
        )
        add("--keep-bpe", action="store_true", help="put out segmented text as it is")
        add("--as-transformer", action="store_true", help=AS_TRANSFORMER)
        add = engines.add_argument
        add(ENGINE.flag, choices=ENGINE.choices, default=ENGINE.default, help=ENGINE.help)
        shown = f"{PRECISION.help}; default {PRECISION.default}"
        add(PRECISION.flag, choices=PRECISION.choices, help=shown)
        add(OF_DRAFTER.flag, choices=OF_DRAFTER.choices, help=OF_DRAFTER.help)
        add("--fp64", action="store_true", help="--precision float64")

    def _add_fairseq_flags(self) -> None:
        """Last of all: fairseq leaves out those of its flags that are there already."""
        options.add_generation_args(self)
        add_encoder_flags(self)
        group = self.add_argument_group("fairseq")
        group.add_argument("--task", metavar="TASK", help="any: the task is always our own")
        gen_parser_from_dataclass(group, CommonConfig())
        options.add_dataset_args(self, gen=True)


def add_encoder_flags(parser: argparse.ArgumentParser) -> None:
    """fairseq's ``--tokenizer`` and ``--bpe``, and the options of each of them."""
    for name in ENCODERS:
        group = parser.add_argument_group(name)
        group.add_argument(f"--{name}", choices=list(REGISTRIES[name]["registry"]))
        for config in REGISTRIES[name]["dataclass_registry"].values():
            if config is not None:
                gen_parser_from_dataclass(group, config())


def encoder_options(args: Namespace) -> JsonObject:
    """Return the options of the tokenizer and the BPE of a command line, under fairseq's names."""
    options = {}
    for name in ENCODERS:
        config = REGISTRIES[name]["dataclass_registry"].get(getattr(args, name))
        for key in vars(config()) if config is not None else ():
            if hasattr(args, key):
                options[key] = getattr(args, key)
    return options


def _precision(args: Namespace) -> str:
    """Return what ``--precision`` says, or one of the flags that stand for a value of it."""
    given = {f"--{flag}": name for flag, name in PRECISION_FLAGS.items() if getattr(args, flag)}
    if args.precision is not None:
        given["--precision"] = args.precision
    if len(given) > 1:
        one, other, *_ = given
        raise ValueError(f"{one} and {other}: give one of them")
    return next(iter(given.values()), PRECISION.default)


def _warn_of_no_tau(args: Namespace) -> None:
    """Relaxed acceptance takes both of its options."""
    judges = args.strategy == "specdec" and args.controller != "none"
    if judges and args.beta > 1 and args.tau == 0:
        logger.warning(
            "--beta %d: without --tau accepts only what is as probable as the verifier's own token",
            args.beta,
        )


def _models_and_text(args: Namespace) -> JsonObject:
    """Settings of checkpoints, tokenizer and BPE: those of the flags, or of a pair's folder."""
    flags = {name: getattr(args, name) for name in ENCODERS}
    folder = folder_of_pair(Path(args.data))
    if args.path or args.AR_path or not (folder / VERIFIER).is_file():
        path, verifier = split_pair(args.path, args.AR_path) if args.path else (None, args.AR_path)
        settings = {"data": args.data, "path": path, "ar_path": verifier}
        if not args.segmented and not any(flags.values()):
            settings |= segmentation_beside(Path(args.data))
    else:
        settings = pair_settings(folder)
        if args.segmented:
            settings |= {"tokenizer": None, "bpe": None}
    options = {**settings.get("encoder_options", {}), **args.encoder_options}
    chosen = {name: encoder for name, encoder in flags.items() if encoder is not None}
    return {**settings, **chosen, "encoder_options": options}


def make_settings(args: Namespace) -> Settings:
    """Return the settings that a parsed command line stands for.

    Raises:
        ValueError: a value that cannot be, naming its flag.
        CheckpointError: ``--path`` names two checkpoints that are no pair.
    """
    instead = "is gone; put out all of a beam (--nbest) and let scripts/closest.py choose among it"
    refuse_flags(args, [("--closest-to", None, instead)])
    check_honoured(args)
    if args.acceptance_head and args.strategy != "specdec":
        raise ValueError(
            f"--acceptance-head {args.acceptance_head}: --strategy {args.strategy} verifies no "
            "drafts; use --strategy specdec"
        )
    _warn_of_no_tau(args)
    limits = {name: getattr(args, name) for name in LIMITS}
    rule = choose_rule({option: vars(args)[option] for option in RULE_OPTIONS})
    return Settings(
        **_models_and_text(args),
        **{name: getattr(args, name) for name in PLAIN},
        ar_backend=args.AR_backend,
        # Beam search accepts nothing; Settings refuses that it draws.
        rule=StrictRule() if args.strategy == "fairseq" and not rule.draws else rule,
        controller=controller_of(vars(args)),
        limits=GenerationLimits.from_config(Namespace(**limits)),
        device="cuda" if torch.cuda.is_available() and not args.cpu else "cpu",
        precision=_precision(args),
    )
