"""Recipes: what fairseq-train is told by their flags is what is in the file."""

from __future__ import annotations

import re
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf

from specdec_plugins.cli import train
from specdec_plugins.cli.recipe import CONFIG, flag_of, with_recipe
from specdec_plugins.files.errors import UsageError

RECIPES = sorted(CONFIG.glob("*.yaml"))
REFERENCE = re.compile(r"\$\{(\w+)\.(\w+)\}")
GIVEN = ["bin", "--AR-path", "verifier.pt", "--drafter", "drafter.pt", "--save-dir", "out"]
RECIPE = """
task: {_name: translation_specdec, data: "???", total_up: "${optimization.max_update}"}
model: {_name: transformer, encoder_normalize_before: true, encoder_layers: 3, dropout: 0.2}
lr_scheduler: {_name: polynomial_decay, total_num_update: "${optimization.max_update}"}
optimization: {lr: [0.002], max_update: 70}
checkpoint: {no_epoch_checkpoints: true, save_dir: null}
"""


def configured(argv: list[str]) -> Any:
    """What fairseq-train makes of a command line."""
    parser = options.get_training_parser()
    args, unknown = options.parse_args_and_arch(parser, argv, parse_known=True)
    assert unknown in ([], ["--drafter", "drafter.pt"])  # which heads have
    return convert_namespace_to_omegaconf(args)


def fields(part: Any) -> dict[str, Any]:
    return vars(part) if isinstance(part, Namespace) else dict(part)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_flags_say_all_that_the_file_says(path: Path) -> None:
    config = configured(with_recipe([*GIVEN, "--recipe", path.stem]))
    plain: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    for group, settings in plain.items():
        found = fields(config[group])
        for name, value in settings.items():
            if value != "???":
                other = REFERENCE.fullmatch(str(value))
                value = fields(config[other[1]])[other[2]] if other else value
                assert found[name] == value, f"{group}.{name}"


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(RECIPE, "utf-8")
    return str(path)


def flags(recipe: str, *given: str) -> list[str]:
    return with_recipe(["bin", "--recipe", recipe, *given])


def test_without_a_recipe_nothing_is_changed() -> None:
    assert with_recipe(["bin", "--lr", "-1"]) == ["bin", "--lr", "-1"]


def test_flags_override(recipe: str) -> None:
    config = configured(flags(recipe, "--encoder-layers", "5", "--lr", "0.5", "--max-update", "9"))
    assert (config.model.encoder_layers, config.optimization.lr) == (5, [0.5])
    assert config.model.dropout == 0.2
    # What is to be the same as another setting follows it.
    assert config.lr_scheduler.total_num_update == config.task.total_up == 9


def test_settings_of_a_scheduler_go_with_it(recipe: str) -> None:
    for given in (["--lr-scheduler", "inverse_sqrt"], ["--lr-scheduler=inverse_sqrt"]):
        config = configured(flags(recipe, *given))
        assert config.lr_scheduler._name == "inverse_sqrt"
        assert "total_num_update" not in config.lr_scheduler
    config = configured(flags(recipe, "--lr-scheduler", "polynomial_decay"))
    assert config.lr_scheduler.total_num_update == 70


def test_settings_of_a_model_go_with_it(recipe: str) -> None:
    config = configured(flags(recipe, "--arch", "block"))
    assert (config.model.arch, config.model.encoder_layers) == ("block", 6)
    assert not hasattr(config.model, "dropout")


def test_switches_are_turned_off(recipe: str) -> None:
    config = configured(flags(recipe))
    assert config.model.encoder_normalize_before
    assert config.checkpoint.no_epoch_checkpoints
    config = configured(flags(recipe, "--no-encoder-normalize-before", "--epoch-checkpoints"))
    assert not config.model.encoder_normalize_before
    assert not config.checkpoint.no_epoch_checkpoints


def test_the_last_recipe_counts(recipe: str) -> None:
    assert with_recipe(["bin", "--recipe", "other", "--recipe", recipe]) == flags(recipe)


def test_flags_of_fields() -> None:
    assert (flag_of("max_update"), flag_of("AR_path")) == ("--max-update", "--AR-path")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "holds no settings"),
        ("- a\n", "holds no settings"),
        ("a: [\n", "cannot be read (while parsing"),
        ("task: 3\n", "task is no group of settings"),
        ("task: {left_pad_source: false}\n", "task.left_pad_source is false, which no flag says"),
        ("model: {encoder: {layers: 3}}\n", "model.encoder: no flag says {'layers': 3}"),
        ("model: {dropout: '${nowhere.x}'}\n", "model.dropout: Interpolation key 'nowhere.x' not"),
        (
            "task:\n  AR_path: ???\nmodel: {init_encoder_from: '${task.AR_path}'}\n",
            "Missing mandatory value: task.AR_path; give --AR-path",
        ),
    ],
)
def test_a_file_that_is_no_recipe_is_named(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(UsageError) as caught:
        flags(str(path))
    assert str(caught.value).startswith(f"{path}: ")
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_recipe_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["train.py", "bin", "--recipe", "wmt15"])
    assert train.main() == 2
    error = capsys.readouterr().err
    assert error.startswith("train.py: --recipe wmt15: no such recipe (multi30k_drafter, ")
    assert error.count("\n") == 1
