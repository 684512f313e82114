"""The tree says where data flow; this test keeps it so."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "winsor"
LAYERS = [  # from the bottom up; a module imports from its own layer and below
    {"contract", "randomness"},
    {"accounting"},
    {"grads"},
    {"rules", "mechanisms", "sampling", "ledger", "nn", "tails", "iterates"},
    {"door", "feeding", "update", "mixing", "prepaid", "arguments"},
    {"means", "data"},
    {
        "training",
        "making",
        "fitting",
        "linear",
        "audit",
        "plan",
        "plan_modelmix",
        "plan_data",
        "runs",
    },
    {"report", "papers"},
    {"cli", "__main__", "__init__"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}


def imports(path: Path) -> set[str]:
    """Top-level parts of winsor that a file imports when it is loaded (not inside functions)."""
    found = set()
    for node in ast.walk(_without_functions(ast.parse(path.read_text()))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "winsor":
                names = [f"winsor.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("winsor.")}
    return found


def _without_functions(tree: ast.Module) -> ast.Module:
    class Strip(ast.NodeTransformer):
        def visit_FunctionDef(self, node):
            return None

        visit_AsyncFunctionDef = visit_FunctionDef

        def visit_If(self, node):
            typing_only = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
            return None if typing_only else self.generic_visit(node)

    return Strip().visit(tree)


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path):
    part = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert part in RANK, f"{part} has no place in the layers; give it one here"
    for other in imports(path) - {part}:
        assert RANK[other] <= RANK[part], f"{path.name} ({part}) imports {other}, which is above it"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_imports_the_published_claims(path):
    part = path.relative_to(ROOT).parts[0].removesuffix(".py")
    if part not in ("papers", "cli"):
        assert "papers" not in imports(path)


@pytest.mark.parametrize("module", ["winsor.accounting", "winsor.cli.main", "winsor.contract"])
def test_these_load_without_torch(module):
    code = f"import {module}, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
