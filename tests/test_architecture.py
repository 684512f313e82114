"""The tree says where data flow; this test keeps it so.

`docs/import_graph.py` has the layers and reads the imports: those at the top of files, inside
functions, under TYPE_CHECKING and by string.
"""

from __future__ import annotations

import ast
import subprocess
import sys

import import_graph
import pytest
from import_graph import (
    FRONT,
    PACKAGE,
    STRANGERS,
    Import,
    all_imports,
    arrows,
    circles,
    imports_of,
    rank,
)

ROOT = PACKAGE
FILES = sorted(ROOT.rglob("*.py"))
RANK = rank()
IMPORTS = all_imports()


def part_of(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path) -> list[Import]:
    """What one file imports of other parts, the front door (it knows every home) left out."""
    file = path.relative_to(ROOT).as_posix()
    return [
        one
        for one in IMPORTS
        if one.file == file
        and one.target.startswith("winsor.")
        and one.target_part != one.source_part
        and one.target_part in RANK
    ]


# ------------------------------------------------------------------------------------ directions


INSIDE = [path for path in FILES if part_of(path) != FRONT]
"""All but the front door, which names the homes of everything."""


@pytest.mark.parametrize("path", INSIDE, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path):
    part = part_of(path)
    assert part in RANK, f"{part} has no place in the layers; give it one in docs/import_graph.py"
    wrong = [str(one) for one in imports(path) if RANK[one.target_part] > RANK[part]]
    assert not wrong, f"{part} imports what is above it: {wrong}"


def test_every_part_has_a_place():
    parts = {part_of(path) for path in FILES} - {FRONT}
    assert parts - set(RANK) == set(), "give them a place in docs/import_graph.py"


def test_packages_import_one_another_in_no_circle():
    graph = arrows(IMPORTS)
    found = circles(graph)
    guilty = [
        str(one)
        for group in found
        for one in IMPORTS
        if one.source_part in group and one.target_part in group
        and one.source_part != one.target_part
    ]  # fmt: skip
    assert not found, f"circles {found}, through {guilty}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_only_the_version_is_read_from_the_front_door(path):
    """`import winsor; winsor.fit` inside winsor would hide an arrow from the graph."""
    tree = ast.parse(path.read_text())
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "winsor"
    }
    used |= {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "winsor" and part_of(path) != FRONT
        for alias in node.names
        if alias.name not in RANK
    }
    assert used <= {"__version__"}


# ------------------------------------------------------------------------------------- strangers


def test_nothing_imports_the_published_claims_or_the_tests():
    """`winsor_papers` plugs in by entry points; `selfaudit` is found where a clone has it."""
    assert [str(one) for one in IMPORTS if one.target.split(".")[0] in STRANGERS] == []


def foreign(path) -> set[str]:
    """Top-level names of everything a file imports, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= {"typer"} & {node.value.split(".")[0]}
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_typer_is_imported_by_the_command_line_only(path):
    if not path.relative_to(ROOT).as_posix().startswith("app/commands/"):
        assert "typer" not in foreign(path)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_ships_knows_neither_tests_nor_benchmarks(path):
    assert foreign(path) & {"tests", "benchmarks", "docs", "pytest", "hypothesis"} == set()


@pytest.mark.parametrize(
    "module",
    [
        "winsor.core.accounting",
        "winsor.app.commands.main",
        "winsor.core.contract",
        "winsor.core.checks",
        "winsor.core.randomness",
        "winsor_papers.theory",
        "winsor.planning",
        "winsor.planning.plan",
    ],
)
def test_these_load_without_torch(module):
    code = f"import {module}, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# --------------------------------------------------------------------------- the reader of imports


HIDDEN = '''
"""A docstring that names winsor.audit imports nothing."""
from __future__ import annotations
from importlib import import_module
from typing import TYPE_CHECKING
from winsor import rules
from ..gradients import view
if TYPE_CHECKING:
    from winsor.core.ledger.ledger import Ledger
_HOMES = {"Flat": "winsor.rules.flat", "plan": "winsor.planning.plan:solve"}
def later():
    """winsor.app.report"""
    import winsor.audit.curve
    import_module("winsor.tails")
    return "winsor.no_such_module", "winsor"
'''


def test_the_reader_sees_every_form_of_import():
    found = {
        (one.target, one.lazy, one.typing_only) for one in imports_of(HIDDEN, "training/loop.py")
    }
    assert found == {
        ("winsor.rules", False, False),
        ("winsor.gradients.view", False, False),
        ("winsor.core.ledger.ledger", False, True),
        ("winsor.rules.flat", True, False),
        ("winsor.planning.plan", True, False),
        ("winsor.audit.curve", True, False),
        ("winsor.tails", True, False),
    }


def test_the_reader_sees_circles():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"a"}}
    assert circles(graph) == [["b", "c"]]
    assert circles({"a": {"b"}, "b": set()}) == []


def test_no_part_stands_in_two_layers():
    names = [part for layer in import_graph.LAYERS for part in layer]
    assert len(names) == len(set(names))
