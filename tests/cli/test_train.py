"""``specdec-train``: what fairseq is given, and what becomes of its complaints."""

from __future__ import annotations

import sys

import pytest

from specdec_plugins.cli.train import PACKAGE, TASK, main, with_plugin


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


def test_an_interrupt_is_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cli_main() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fairseq_cli.train.cli_main", cli_main)
    monkeypatch.setattr(sys, "argv", ["train.py", "bin"])
    assert main() == 130
    assert capsys.readouterr().err == "train.py: interrupted\n"
