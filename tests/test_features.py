"""What must not go: each line of ``features.toml`` has tests, which exist and are run."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest needs it, too
    import tomli as tomllib

TESTS = Path(__file__).resolve().parent
FEATURES: dict[str, dict[str, Any]] = {
    f"{room}.{name}": feature
    for room, features in tomllib.loads((TESTS / "features.toml").read_text("utf-8")).items()
    for name, feature in features.items()
}


@cache
def collected(path: Path) -> dict[str, bool]:
    """The tests of a file, True if they are marked slow, which the suite leaves out."""
    found: dict[str, bool] = {}

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
                collect(node.body, f"{prefix}{node.name}::")
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                marks = [ast.unparse(decorator) for decorator in node.decorator_list]
                found[prefix + node.name] = "pytest.mark.slow" in marks

    collect(ast.parse(path.read_text("utf-8")).body, "")
    return found


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_has_tests_that_are_run(name: str) -> None:
    feature = FEATURES[name]
    assert feature.keys() == {"promise", "tests"}
    assert len(feature["promise"].split()) > 4
    assert feature["tests"], "nothing would fail without it"
    assert len(set(feature["tests"])) == len(feature["tests"])
    slow = []
    for test in feature["tests"]:
        file, _, function = test.partition("::")
        assert (TESTS / file).is_file(), f"{test}: its file is gone"
        found = collected(TESTS / file)
        assert function in found, f"{test}: is gone; name the test that takes its place"
        slow.append(found[function])
    assert not all(slow), "the suite runs none of them"
