"""What ``--help`` shows of a command."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from specdec_plugins.files.help import Parser, command_of

SETUP = Path(__file__).resolve().parents[2] / "setup.py"
DOORS = [
    *("average_checkpoints", "calibrate_head", "encoder_initial"),
    *("export_checkpoint", "inference", "trace_report", "translate_corpus"),
]


@pytest.mark.parametrize("name", DOORS)
def test_an_example_is_at_the_end(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(f"specdec_plugins.cli.{name}")
    monkeypatch.setattr("sys.argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 0
    help_text = capsys.readouterr().out
    text, _, example = help_text.partition("\nexample:\n")
    assert f"\n    scripts/{name}.py " in f"\n{example}"
    assert f"scripts/{name}.py" not in text
    # Of fairseq's hundreds of flags none is shown that does nothing.
    assert "--wandb-project" not in text
    assert "--lm-path" not in text


def test_an_example_has_the_names_that_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "A title.\n\n    scripts/inference.py DATA\n    scripts/trace_report.py FILE\n"
    installed = ("specdec-translate DATA", "specdec-trace-report FILE")
    for called, (first, second) in (
        ("specdec-trace-report", installed),
        ("trace_report.py", ("scripts/inference.py DATA", "scripts/trace_report.py FILE")),
    ):
        monkeypatch.setattr("sys.argv", [f"/bin/{called}"])
        assert Parser("x.py", text).epilog == f"example:\n    {first}\n    {second}"


def test_commands_are_those_that_are_installed() -> None:
    names = re.findall(r'"(specdec-[\w-]+)": "(\w+)"', SETUP.read_text("utf-8"))
    assert len(names) > 10
    for command, script in names:
        assert command_of(script) == command


def test_defaults_are_told_once() -> None:
    parser = Parser("x.py", "A title.\n\n    an example\n        goes on\n")
    add = parser.add_argument
    add("--ratio", default=1.0, help="plain")
    add("--names", nargs="*", default=["a", "b"], help="several")
    add("--said", default=3, help="as said (three)")
    add("--none", help="without")
    add("--switch", action="store_true", help="on")
    add("--missing", default="???", help="no value")
    text = parser.format_help()
    for end in ("plain (1.0)", "several (a b)", "as said (three)", "without", "on", "no value"):
        assert f"{end}\n" in text
    assert text.endswith("example:\n    an example\n        goes on\n")
    assert text.count("an example") == 1
