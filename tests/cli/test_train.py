"""``specdec-train``: the flags of recipes, fairseq's command line, and its complaints."""

from __future__ import annotations

import re
from argparse import Namespace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from helpers.models.dummy_data import COMMON
from helpers.models.trained import Trained
from omegaconf import OmegaConf

from specdec_plugins.cli.train import PACKAGE, TASK, main, save_dir_lock, with_plugin
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.tasks.recipes import CONFIG, with_recipe

REFERENCE = re.compile(r"\$\{(\w+)\.(\w+)\}")
USUAL = ["bin", "--AR-path", "verifier.pt", "--drafter", "drafter.pt", "--save-dir", "out"]
RECIPE = """
task: {_name: translation_specdec, data: "???", total_up: "${optimization.max_update}"}
model: {_name: transformer, encoder_normalize_before: true, encoder_layers: 3, dropout: 0.2}
lr_scheduler: {_name: polynomial_decay, total_num_update: "${optimization.max_update}"}
common: {fp16: false}
optimization: {lr: [0.002], max_update: 70}
checkpoint: {no_epoch_checkpoints: true, save_dir: null}
"""


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training without ``--save-dir`` writes into ``./checkpoints``."""
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("path", sorted(CONFIG.glob("*.yaml")), ids=lambda path: path.stem)
def test_flags_say_all_that_the_file_says(path: Path) -> None:
    argv = with_recipe([*USUAL, "--recipe", path.stem])
    args, unknown = options.parse_args_and_arch(
        options.get_training_parser(), argv, parse_known=True
    )
    assert unknown in ([], ["--drafter", "drafter.pt"])  # which heads have
    groups = convert_namespace_to_omegaconf(args)
    config = {k: vars(v) if isinstance(v, Namespace) else v for k, v in groups.items()}
    plain: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    for group, settings in plain.items():
        for name, value in settings.items():
            if value != "???":
                other = REFERENCE.fullmatch(str(value))
                value = config[other[1]][other[2]] if other else value
                assert config[group][name] == value, f"{group}.{name}"


@pytest.mark.parametrize(
    ("more", "has", "lacks"),
    [
        ("", "--encoder-normalize-before --no-epoch-checkpoints --total-up=70", ""),
        ("", "", "--fp16=False --fp16"),
        # Settings that refer to another follow it.
        ("--max-update 9", "--total-num-update=9 --total-up=9 --dropout=0.2", "--total-up=70"),
        ("--encoder-layers 5", "--encoder-layers 5 --dropout=0.2", "--encoder-layers=3"),
        # Another kind takes none of the recipe's settings.
        ("--lr-scheduler inverse_sqrt", "--total-up=70", "--total-num-update=70"),
        ("--arch block", "--total-up=70", "--encoder-layers=3 --dropout=0.2"),
        ("-a block", "--total-up=70", "--encoder-layers=3 --dropout=0.2"),
        ("--no-encoder-normalize-before", "--dropout=0.2", "--encoder-normalize-before"),
        ("--epoch-checkpoints", "--dropout=0.2", "--no-epoch-checkpoints --epoch-checkpoints"),
    ],
)
def test_flags_override(more: str, has: str, lacks: str) -> None:
    Path("mine.yaml").write_text(RECIPE, "utf-8")
    flags = {*with_recipe(["bin", "--recipe", "mine.yaml", *more.split()])}
    assert {*has.split()} <= flags
    assert not {*lacks.split()} & flags
    assert with_recipe(["bin", *more.split()]) == ["bin", *more.split()]


@pytest.mark.parametrize(
    ("argv", "status", "recipe"),
    [
        ("", 2, ""),
        ("nowhere --arch block --max-tokens 9", 1, ""),
        ("nowhere --recipe none", 2, ""),
        ("bin --arch block --save-dir bad.yaml", 1, ""),
        ("bin --recipe bad.yaml", 2, "a: [\n"),
        ("bin --recipe bad.yaml", 2, "a: " + "[" * 10**5),
        ("bin --recipe bad.yaml", 2, "\xff\xfe"),
        ("bin --recipe bad.yaml", 2, "model: {dropout: '${nowhere.x}'}\n"),
        ("bin --recipe bad.yaml", 2, "task:\n  AR_path: ???\nmodel: {a: '${task.AR_path}'}\n"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_input_is_one_line(
    argv: str, status: int, recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.yaml").write_text(recipe, "latin-1")
    assert main(argv.split()) == status
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "more", ["", "--user-dir specdec_plugins", "--user-dir=../specdec_plugins/"]
)
def test_the_plugin_is_found_wherever_it_is(more: str) -> None:
    expected = ["--user-dir", str(PACKAGE), "--task", TASK]
    assert with_plugin(["bin", *more.split(), "--lr", "-1"]) == ["bin", "--lr", "-1", *expected]
    others = ["bin", "--user-dir", "mine", "--task", "translation"]
    assert with_plugin(others) == others  # the plugin is imported all the same


def test_the_end_of_a_training_is_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer, argv = Mock(), ["bin", "--arch", "block"]
    monkeypatch.setattr("fairseq_cli.train.cli_main", trainer)
    for error in (KeyboardInterrupt(), FloatingPointError("a\nb"), ValueError("--start-p 2.0: a")):
        trainer.side_effect = error
        assert main(argv) == {KeyboardInterrupt: 130, ValueError: 2}.get(type(error), 1)
        assert capsys.readouterr().err.count("\n") == 1
    trainer.side_effect = ValueError("math domain error")  # of no flag: a traceback helps
    with pytest.raises(ValueError, match="math"):
        main(argv)


def test_a_checkpoint_of_other_widths(
    trained: Trained, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["specdec-train"])
    flags = f"{trained.drafter_flags} {COMMON} --decoder-ffn-embed-dim 8 --max-epoch 9"
    files = f"{trained.data} --save-dir {trained.drafter.parent}"
    assert main(f"{files} {flags}".split()) == 1
    assert "--decoder-ffn-embed-dim 8" in capsys.readouterr().err.splitlines()[-1]


def test_a_save_dir_belongs_to_one_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes share it: a flag or torchrun's variable identifies them."""
    argv = ["bin", "--save-dir", "runs/a"]

    def reserve(*more: str, rank: str = "0") -> None:
        monkeypatch.setenv("RANK", rank)
        with save_dir_lock([*argv, *more]):
            pass

    with save_dir_lock(argv):
        reserve("--save-dir=runs/b")
        reserve("--distributed-rank", "1")
        reserve(rank="1")
        with pytest.raises(InferenceError):
            reserve()
