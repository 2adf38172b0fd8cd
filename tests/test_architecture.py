"""The architecture: imports run down, without circles, and no room outgrows its ceiling.

Ceilings only fall: lower a number with every change that makes room, down to the design's.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import specdec_plugins

PACKAGE = Path(specdec_plugins.__file__).parent
FLOORS = (
    ("files", "machine"),
    ("data", "host"),
    ("models",),
    ("checkpoints",),
    ("engines",),
    ("decoding",),
    ("tasks", "criterions"),
    ("inference",),
    ("evaluation", "jobs"),
    ("cli",),
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
CEILINGS = {
    "root": 130,
    "checkpoints": 1420,
    "cli": 930,
    "criterions": 457,
    "data": 135,
    "decoding": 4650,
    "engines": 930,
    "evaluation": 1486,
    "files": 440,
    "host": 305,
    "inference": 1947,
    "jobs": 1190,
    "models": 1799,
    "tasks": 610,
}
"""Lines of each room, all of them."""
MAX_FILES = 130
CLAUSES = r"(What|Of|As|Who|How|Whether|Which)\b"
"""Beginnings of docstrings that say too little."""
FIRST_COMMENT = r"^(?! *#:).*\n *#: (.*)"
"""The first line of what documents an attribute."""
FREE_OF_FAIRSEQ = (
    *(f"decoding/{room}" for room in ("acceptance", "controllers", "drafts", "statistics")),
    "engines",
)

TREES = {
    path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text("utf-8"))
    for path in sorted(PACKAGE.rglob("*.py"))
}
MODULES = {
    path.removesuffix(".py").replace("/", ".").removesuffix("__init__").rstrip("."): tree
    for path, tree in TREES.items()
}
"""Syntax trees by path, and by dotted name without the package's."""


def imports(tree: ast.Module) -> Iterator[str]:
    """Names of all modules that a module imports, at its top or later."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def internal_imports(name: str) -> set[str]:
    """Modules of the package that a module of it imports."""
    targets = {item.removeprefix(f"{PACKAGE.name}.") for item in imports(MODULES[name])}
    return {item for item in targets if item in MODULES} - {"", name}


def test_imports_run_down() -> None:
    """The root registers everything with fairseq, and so may import everything."""
    for name in MODULES:
        room = name.partition(".")[0]
        rooms = {item.partition(".")[0] for item in internal_imports(name)}
        above = {item for item in rooms if room and FLOOR[item] > FLOOR[room]}
        assert not above, name


def test_imports_have_no_circles() -> None:
    graph = {name: internal_imports(name) for name in MODULES}
    assert list(TopologicalSorter(graph).static_order())


def test_the_core_imports_no_fairseq() -> None:
    for path, tree in TREES.items():
        if path.startswith(FREE_OF_FAIRSEQ):
            assert not [name for name in imports(tree) if name.startswith("fairseq")], path


def test_rooms_stay_under_their_ceilings() -> None:
    lines: Counter[str] = Counter()
    for path in TREES:
        count = len((PACKAGE / path).read_text("utf-8").splitlines())
        lines[path.partition("/")[0] if "/" in path else "root"] += count
    assert {room: lines[room] for room in lines if lines[room] > CEILINGS[room]} == {}
    assert len(TREES) <= MAX_FILES


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    nodes = [node for tree in TREES.values() for node in ast.walk(tree)]
    expressions = [node for node in nodes if isinstance(node, ast.Expr)]
    texts = [str(node.value.value) for node in expressions if isinstance(node.value, ast.Constant)]
    sources = ((PACKAGE / path).read_text("utf-8") for path in TREES)
    texts += [text for source in sources for text in re.findall(FIRST_COMMENT, source, re.M)]
    assert not [text for text in texts if re.match(CLAUSES, text)]
