"""``specdec-train``: which ``--user-dir`` fairseq is given."""

from __future__ import annotations

import pytest

from specdec_plugins.cli.train import PACKAGE, with_plugin


@pytest.mark.parametrize(
    "argv",
    [
        ["bin", "--lr", "-1"],
        ["bin", "--lr", "-1", "--user-dir", "specdec_plugins"],
        ["bin", "--user-dir=../specdec_plugins/", "--lr", "-1"],
    ],
)
def test_the_plugin_is_found_wherever_it_is(argv: list[str]) -> None:
    assert with_plugin(argv) == ["bin", "--lr", "-1", "--user-dir", str(PACKAGE)]


def test_another_user_dir_stays() -> None:
    """The plugin is imported all the same."""
    assert with_plugin(["bin", "--user-dir", "mine"]) == ["bin", "--user-dir", "mine"]
