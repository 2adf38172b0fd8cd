"""The architecture: imports run down, without circles; no room grows heavier than its ceiling."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import specdec_plugins

PACKAGE = Path(specdec_plugins.__file__).parent
TESTS = Path(__file__).parent
FLOORS = (
    ("files", "machine"),
    ("data", "host"),
    ("models",),
    ("checkpoints", "verifiers"),
    ("engines",),
    ("decoding",),
    ("tasks", "criterions"),
    ("inference",),
    ("evaluation", "jobs", "serve"),
    ("cli",),
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
CEILINGS = {
    "root": 77,
    "checkpoints": 856,
    "cli": 736,
    "criterions": 194,
    "data": 43,
    "decoding": 2845,
    "engines": 1117,
    "evaluation": 901,
    "files": 339,
    "host": 160,
    "inference": 1831,
    "jobs": 724,
    "models": 950,
    "serve": 477,
    "tasks": 357,
    "verifiers": 575,
}
"""Weight of each room. Lines are free: see :func:`weight`."""
MAX_WEIGHT = 12_182
"""Weight of the package."""
TESTS_TO_CODE = 1.06
"""How much heavier than the package and the scripts their tests may be."""
CLAUSES = r"(What|Of|As|Who|How|Whether|Which)\b"
"""Beginnings of docstrings that say too little."""
FIRST_COMMENT = r"^(?! *#:).*\n *#: (.*)"
"""The first line of what documents an attribute."""
FREE_OF_FAIRSEQ = (
    *(f"decoding/{room}" for room in ("acceptance", "controllers", "drafts", "statistics")),
    "engines",
)
SETTABLE = {"statistics", "controller", "rows"}
"""Attributes of a generator that whoever uses it may set."""
LIBRARIES = {"action", "args", "layer", "model", "options"}
"""Names of objects of argparse, fairseq and torch, whose attributes are set from outside."""

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


def is_documentation(node: ast.stmt) -> bool:
    """Whether a statement is a string that nobody uses: a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def weight(tree: ast.AST) -> int:
    """How much a reader has to follow in some code, however it is laid out.

    A statement counts 1, and so does each part of an expression that stands for a statement: a
    clause of a comprehension, a conditional, a lambda, an assignment within an expression, each
    ``and`` and ``or``. ``a, b = x, y`` counts 2. Imports and documentation count nothing."""
    total = 0
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        if isinstance(node, ast.stmt) and not is_documentation(node):
            total += 1
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            if isinstance(node.targets[0], ast.Tuple):
                total += len(node.value.elts) - 1
        elif isinstance(node, ast.BoolOp):
            total += len(node.values) - 1
        elif isinstance(node, (ast.comprehension, ast.IfExp, ast.Lambda, ast.NamedExpr)):
            total += 1
    return total


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ('"""Documentation."""\nimport os', 0),
        ("x = 1; y = 2", 2),
        ("x, y = 1, 2", 2),
        ("x, y = pair", 1),
        ("if a and b: x, y = 1, 2", 4),
        ("f(a or b or c)", 3),
        ("x = [i for row in rows for i in row if i]", 3),
        ("x = lambda: (y := 1) if z else 2", 4),
    ],
)
def test_weight_counts_what_a_reader_follows(code: str, expected: int) -> None:
    assert weight(ast.parse(code)) == expected


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
    weights: Counter[str] = Counter()
    for path, tree in TREES.items():
        weights[path.partition("/")[0] if "/" in path else "root"] += weight(tree)
    assert {room: weights[room] for room in weights if weights[room] > CEILINGS[room]} == {}
    assert weights.total() <= MAX_WEIGHT
    tests, scripts = (
        sum(weight(ast.parse(path.read_text("utf-8"))) for path in folder.rglob("*.py"))
        for folder in (TESTS, TESTS.parent / "scripts")
    )
    assert tests <= TESTS_TO_CODE * (weights.total() + scripts)


def is_computed(node: ast.expr) -> bool:
    """Whether an expression is more than a name, an attribute or a constant."""
    while isinstance(node, (ast.Attribute, ast.UnaryOp)):
        node = node.value if isinstance(node, ast.Attribute) else node.operand
    return not isinstance(node, (ast.Name, ast.Constant))


def is_condition(node: ast.expr) -> bool:
    negated = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    return negated or isinstance(node, (ast.Compare, ast.BoolOp))


def test_one_statement_says_one_thing() -> None:
    """No ``a, b = f(), g()``, no tuple that is packed to be splatted into a call, no product with a
    condition, no dict of conditions, and no look at an object's own ``vars``."""
    for name, tree in MODULES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
                values = node.value.elts if isinstance(node.value, ast.Tuple) else ()
                assert sum(map(is_computed, values)) < 2, (name, node.lineno)
            if isinstance(node, ast.FunctionDef):
                assert not set(splats(node)), (name, node.name)
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
                assert not any(map(is_condition, (node.left, node.right))), (name, node.lineno)
            if isinstance(node, ast.Call):
                assert ast.unparse(node) != "vars(self)", (name, node.lineno)
            if isinstance(node, ast.Dict):
                assert sum(map(is_condition, node.values)) < 2, (name, node.lineno)


def splats(function: ast.FunctionDef) -> Iterator[str]:
    """Names of a function's local tuples that a call in it takes apart."""
    packed = {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(function):
        arguments = node.args if isinstance(node, ast.Call) else ()
        taken = [item.value for item in arguments if isinstance(item, ast.Starred)]
        yield from (item.id for item in taken if isinstance(item, ast.Name) and item.id in packed)


def attributes_of_self(tree: ast.AST) -> set[str]:
    """Names of the attributes of a tree's classes."""
    return {
        target.attr if isinstance(target, ast.Attribute) else target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for inner in ast.walk(node)
        for target in targets_of(inner)
        if (isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self")
        or (isinstance(target, ast.Name) and inner in node.body)
    }


def targets_of(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign) else []


def test_an_objects_attributes_are_set_by_its_class() -> None:
    """Or by its class's own file, or by the function that made it; counters may count."""
    ours = {name: attributes_of_self(tree) for name, tree in MODULES.items()}
    every = set().union(*ours.values()) - SETTABLE
    for name, tree in MODULES.items():
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            nodes = [*ast.walk(function)]
            calls = [
                x for x in nodes if isinstance(x, ast.Assign) and isinstance(x.value, ast.Call)
            ]
            made = {ast.unparse(target) for call in calls for target in call.targets}
            for target in (x for node in nodes for x in targets_of(node)):
                if isinstance(target, ast.Attribute) and target.attr in every - ours[name]:
                    root = ast.unparse(target).partition(".")[0]
                    assert root in {"self", "cls", *made, *LIBRARIES}, (name, target.lineno)


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    nodes = [node for tree in TREES.values() for node in ast.walk(tree)]
    expressions = [node for node in nodes if isinstance(node, ast.Expr)]
    texts = [str(node.value.value) for node in expressions if isinstance(node.value, ast.Constant)]
    sources = ((PACKAGE / path).read_text("utf-8") for path in TREES)
    texts += [
        text for source in sources for text in re.findall(FIRST_COMMENT, source, re.MULTILINE)
    ]
    assert not [text for text in texts if re.match(CLAUSES, text)]
