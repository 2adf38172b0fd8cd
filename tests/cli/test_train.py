"""``specdec-train``: the flags of recipes, what fairseq is given, and its complaints."""

from __future__ import annotations

import re
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from dummy_data import COMMON
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf
from trained import Trained

from specdec_plugins.cli.train import PACKAGE, TASK, main, save_dir_reserved, with_plugin
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.tasks.recipes import CONFIG, with_recipe

RECIPES = sorted(CONFIG.glob("*.yaml"))
REFERENCE = re.compile(r"\$\{(\w+)\.(\w+)\}")
USUAL = ["bin", "--AR-path", "verifier.pt", "--drafter", "drafter.pt", "--save-dir", "out"]
RECIPE = """
task: {_name: translation_specdec, data: "???", total_up: "${optimization.max_update}"}
model: {_name: transformer, encoder_normalize_before: true, encoder_layers: 3, dropout: 0.2}
lr_scheduler: {_name: polynomial_decay, total_num_update: "${optimization.max_update}"}
optimization: {lr: [0.002], max_update: 70}
checkpoint: {no_epoch_checkpoints: true, save_dir: null}
"""


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training without ``--save-dir`` writes into the folder ``checkpoints`` of where it is."""
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)


def configured(argv: list[str]) -> Any:
    """The configuration that fairseq-train makes of a command line."""
    parser = options.get_training_parser()
    args, unknown = options.parse_args_and_arch(parser, argv, parse_known=True)
    assert unknown in ([], ["--drafter", "drafter.pt"])  # which heads have
    return convert_namespace_to_omegaconf(args)


def fields(part: Any) -> dict[str, Any]:
    return vars(part) if isinstance(part, Namespace) else dict(part)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_flags_say_all_that_the_file_says(path: Path) -> None:
    config = configured(with_recipe([*USUAL, "--recipe", path.stem]))
    plain: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    for group, settings in plain.items():
        part = fields(config[group])
        for name, value in settings.items():
            if value != "???":
                other = REFERENCE.fullmatch(str(value))
                value = fields(config[other[1]])[other[2]] if other else value
                assert part[name] == value, f"{group}.{name}"


@pytest.mark.parametrize(
    ("more", "has", "lacks"),
    [
        ("", "--encoder-normalize-before --no-epoch-checkpoints --total-up=70", ""),
        # Settings that refer to another follow it.
        ("--max-update 9", "--total-num-update=9 --total-up=9 --dropout=0.2", "--total-up=70"),
        ("--encoder-layers 5", "--encoder-layers 5 --dropout=0.2", "--encoder-layers=3"),
        # Another kind takes none of the recipe's settings.
        ("--lr-scheduler inverse_sqrt", "--total-up=70", "--total-num-update=70"),
        ("--lr-scheduler=inverse_sqrt", "--total-up=70", "--total-num-update=70"),
        ("--lr-scheduler polynomial_decay", "--total-num-update=70", ""),
        ("--arch block", "--total-up=70", "--encoder-layers=3 --dropout=0.2"),
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
    "text",
    [
        "- a\n",
        "a: [\n",
        "a: " + "[" * 10**5,
        "\xff\xfe",
        "task: 3\n",
        "model: {dropout: '${nowhere.x}'}\n",
        "task:\n  AR_path: ???\nmodel: {init_encoder_from: '${task.AR_path}'}\n",
    ],
    ids=lambda text: text[:12],
)
def test_a_file_that_is_no_recipe_is_named(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text, "latin-1")
    assert main(["bin", "--recipe", str(path)]) == 2
    error = capsys.readouterr().err
    assert f": {path}: " in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "more", ["", "--user-dir specdec_plugins", "--user-dir=../specdec_plugins/"]
)
def test_the_plugin_is_found_wherever_it_is(more: str) -> None:
    own = ["--user-dir", str(PACKAGE), "--task", TASK]
    assert with_plugin(["bin", *more.split(), "--lr", "-1"]) == ["bin", "--lr", "-1", *own]
    others = ["bin", "--user-dir", "mine", "--task", "translation"]
    assert with_plugin(others) == others  # the plugin is imported all the same


@pytest.mark.parametrize(
    ("argv", "status", "message"),
    [
        ("", 2, "give a folder of binarised text, and --recipe or --arch; see --help"),
        ("nowhere --arch block --max-tokens 9", 1, "nowhere: no such file or folder"),
        ("nowhere --recipe none", 2, "--recipe none: no such recipe (multi30k_drafter, "),
        ("bin --arch block --save-dir file", 1, "file: File exists"),
    ],
)
def test_complaints_are_a_line(
    argv: str, status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("file").touch()
    assert main(argv.split()) == status
    assert f": {message}" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("raised", "status", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (FloatingPointError("gradients are Nan/Inf"), 1, "training went wrong (gradients are Nan"),
        (ValueError("--start-p 2.0: must be between 0 and 1"), 2, "--start-p 2.0: must be"),
        (ValueError("math domain error"), None, ""),  # of no flag: a traceback is of use
    ],
)
def test_the_end_of_a_training_is_a_line(
    raised: BaseException,
    status: int | None,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def cli_main() -> None:
        raise raised

    monkeypatch.setattr("fairseq_cli.train.cli_main", cli_main)
    if status is None:
        with pytest.raises(type(raised)):
            main(["bin", "--arch", "block"])
        return
    assert main(["bin", "--arch", "block"]) == status
    error = capsys.readouterr().err
    assert f": {message}" in error
    assert error.count("\n") == 1


def test_a_checkpoint_of_other_widths(
    trained: Trained, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["specdec-train"])
    flags = f"{trained.drafter_flags} {COMMON} --decoder-ffn-embed-dim 8 --max-epoch 9"
    data = str(trained.data), *flags.split(), "--save-dir", str(trained.drafter.parent)
    assert main(data) == 1
    assert "(--decoder-ffn-embed-dim 8: it has 32)" in capsys.readouterr().err.splitlines()[-1]


def test_a_save_dir_belongs_to_one_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose processes share it: they are known by a flag, or by torchrun's variable."""
    argv = ["bin", "--save-dir", "runs/a"]
    with save_dir_reserved(argv):
        with save_dir_reserved(["bin", "--save-dir=runs/b"]):
            pass
        with save_dir_reserved([*argv, "--distributed-rank", "1"]):
            pass
        monkeypatch.setenv("RANK", "1")
        with save_dir_reserved(argv):
            pass
        monkeypatch.setenv("RANK", "0")
        with pytest.raises(InferenceError, match="another run"), save_dir_reserved(argv):
            pass
