"""``specdec-train``: what fairseq is given, and what becomes of its complaints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from specdec_plugins.cli.train import PACKAGE, TASK, main, save_dir_reserved, with_plugin
from specdec_plugins.files.errors import InferenceError


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training without ``--save-dir`` writes into the folder ``checkpoints`` of where it is."""
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "argv",
    [
        ["bin", "--lr", "-1"],
        ["bin", "--lr", "-1", "--user-dir", "specdec_plugins"],
        ["bin", "--user-dir=../specdec_plugins/", "--lr", "-1"],
    ],
)
def test_the_plugin_is_found_wherever_it_is(argv: list[str]) -> None:
    own = ["--user-dir", str(PACKAGE), "--task", TASK]
    assert with_plugin(argv) == ["bin", "--lr", "-1", *own]


def test_the_plugin_is_found_in_a_folder_that_links_to_it(tmp_path: Path) -> None:
    (tmp_path / PACKAGE.name).symlink_to(PACKAGE)
    argv = ["bin", "--arch", "block", "--max-tokens", "9"]
    train = f"import {main.__module__} as train; train.main({argv})"
    done = subprocess.run([sys.executable, "-c", train], capture_output=True, text=True)
    assert "bin: no such file or folder" in done.stderr


def test_another_user_dir_stays() -> None:
    """The plugin is imported all the same."""
    others = ["bin", "--user-dir", "mine", "--task", "translation"]
    assert with_plugin(others) == others


@pytest.mark.parametrize(
    ("argv", "status", "message"),
    [
        ("", 2, "give a folder of binarised text, and --recipe or --arch; see --help"),
        ("nowhere --arch block --max-tokens 9", 1, "nowhere: no such file or folder"),
        ("nowhere --recipe none", 2, "--recipe none: no such recipe"),
    ],
)
def test_complaints_are_a_line(
    argv: str,
    status: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", *argv.split()])
    assert main() == status
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"train.py: {message}")


def test_faults_of_flags_are_a_line_and_others_say_where(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raises(message: str) -> None:
        def cli_main() -> None:
            raise ValueError(message)

        monkeypatch.setattr("fairseq_cli.train.cli_main", cli_main)
        monkeypatch.setattr(sys, "argv", ["train.py", "bin"])

    raises("--start-p 2.0: must be between 0 and 1")
    assert main() == 2
    assert capsys.readouterr().err == "train.py: --start-p 2.0: must be between 0 and 1\n"
    raises("math domain error")
    with pytest.raises(ValueError, match="math domain"):
        main()


def test_another_model_in_the_folder_is_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """fairseq says that something does not fit, and not what."""

    def cli_main() -> None:
        try:
            raise ValueError("the head was trained for --beta 1")
        except ValueError:
            raise Exception(
                "Cannot load model parameters from checkpoint runs/head/a.pt; why"
            ) from None

    monkeypatch.setattr("fairseq_cli.train.cli_main", cli_main)
    monkeypatch.setattr(sys, "argv", ["train.py", "bin"])
    assert main() == 1
    assert capsys.readouterr().err == (
        "train.py: Cannot load model parameters from checkpoint runs/head/a.pt; why (the head was "
        "trained for --beta 1); give another --save-dir to begin anew\n"
    )


@pytest.mark.parametrize(
    ("raised", "status", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (FloatingPointError("Minimum loss scale reached (0.0001)"), 1, "training went wrong (Min"),
        (FloatingPointError("gradients are Nan/Inf"), 1, "training went wrong (gradients are Nan"),
    ],
)
def test_what_ends_a_training_is_a_line(
    raised: BaseException,
    status: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def cli_main() -> None:
        raise raised

    monkeypatch.setattr("fairseq_cli.train.cli_main", cli_main)
    monkeypatch.setattr(sys, "argv", ["train.py", "bin"])
    assert main() == status
    said = capsys.readouterr().err
    assert said.startswith(f"train.py: {message}")
    assert said.count("\n") == 1


def test_a_save_dir_belongs_to_one_training(tmp_path: Path) -> None:
    argv = ["bin", "--save-dir", str(tmp_path / "runs" / "a")]
    with save_dir_reserved(argv):
        with (
            pytest.raises(InferenceError, match="another run is at work there"),
            save_dir_reserved(argv),
        ):
            pass
        with save_dir_reserved(["bin", f"--save-dir={tmp_path / 'runs' / 'b'}"]):
            (tmp_path / "runs" / "b" / "checkpoint_last.pt").touch()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["b"]


def test_all_processes_of_a_distributed_training_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with save_dir_reserved(["bin"]):
        with save_dir_reserved(["bin", "--distributed-rank", "1"]):
            pass
        monkeypatch.setenv("RANK", "1")  # of torchrun
        with save_dir_reserved(["bin"]):
            pass
        monkeypatch.setenv("RANK", "0")
        with pytest.raises(InferenceError), save_dir_reserved(["bin"]):
            pass


def test_a_save_dir_that_cannot_be_made_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(sys, "argv", ["train.py", "bin", "--save-dir", "file"])
    assert main() == 1
    assert (
        capsys.readouterr().err
        == "train.py: --save-dir file: cannot be written to (File exists); name a folder of yours\n"
    )
