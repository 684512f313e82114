"""The walls of the trusted room: what it imports, who may do its work, and that it stands alone."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import winsor.core

CORE = Path(winsor.core.__file__).parent
TESTS = Path(__file__).parent
ROOMS = CORE.parent
OUTSIDE = {"numpy", "scipy", "dp_accounting", "attr", "attrs", "filelock", "cryptography"}
MOST_LINES = 9_000
MOST_LINES_OF_A_FUNCTION = 60

MODULE = re.compile(r"winsor(\.[a-z_]+)+|(torch|sklearn)(\.[a-z_]+)*")
FILES = sorted(CORE.rglob("*.py"))
OTHERS = [path for path in sorted(ROOMS.rglob("*.py")) if CORE not in path.parents]
TREES = {path: ast.parse(path.read_text()) for path in [*FILES, *OTHERS]}


def imports(tree: ast.Module) -> Iterator[str]:
    """Every module named by an import, at any depth, or by a string that is a dotted name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            yield node.module
            if node.module in ("winsor", "winsor.core"):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and MODULE.fullmatch(str(node.value)):
            yield str(node.value)


def allowed(module: str) -> bool:
    top = module.split(".")[0]
    inside = module == "winsor.core" or module.startswith("winsor.core.")
    return inside or top in OUTSIDE or top in sys.stdlib_module_names


GROUP = "winsor.events"  # of entry points: a name in metadata, not a module


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CORE)))
def test_the_core_imports_nothing_but_itself_and_a_few_libraries(path):
    strange = [name for name in imports(TREES[path]) if not allowed(name) and name != GROUP]
    assert strange == []


def test_a_strange_import_would_be_found():
    code = "def f():\n    import torch.nn\n    from winsor import rules\n    g('winsor.tables')"
    strange = [name for name in imports(ast.parse(code)) if not allowed(name)]
    assert sorted(strange) == ["torch.nn", "winsor", "winsor.rules", "winsor.tables"]


# ------------------------------------------------------------------------ what others may not do

MADE_HERE = {"NoiseSource", "Released", "Receipt"}
WRITES = {"record", "record_many"}
HIDDEN = ("lattice", "kernel", "source", "laws", "ahead")
RECORDERS = ("winsor/gradients/",)  # `record` of the engines' tapes is another word


def trespasses(tree: ast.Module, name: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if whole.startswith(tuple(f"winsor.core.noise.{part}" for part in HIDDEN)):
                    yield f"{name}:{node.lineno} imports {whole}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith(tuple(f"winsor.core.noise.{part}" for part in HIDDEN)):
                    yield f"{name}:{node.lineno} imports {alias.name}"
        elif isinstance(node, ast.Call):
            called = node.func
            last = getattr(called, "attr", getattr(called, "id", ""))
            if last in MADE_HERE or (last in WRITES and not name.startswith(RECORDERS)):
                yield f"{name}:{node.lineno} calls {ast.unparse(called)}"
        elif isinstance(node, ast.ClassDef):
            for base in node.bases:
                if getattr(base, "attr", getattr(base, "id", "")) in MADE_HERE:
                    yield f"{name}:{node.lineno} derives from {ast.unparse(base)}"


def test_nobody_else_makes_noise_releases_or_records():
    found = []
    for path in OTHERS:
        found += trespasses(TREES[path], str(path.relative_to(ROOMS.parent)))
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        "from winsor.core.noise.source import NoiseSource",
        "from winsor.core.noise import lattice",
        "import winsor.core.noise.kernel",
        "noise.NoiseSource(key)",
        "class Mine(NoiseSource): ...",
        "contract.Released({}, {}, 0)",
        "self.ledger.record(run, 0, event)",
        "super().record_many(run, event, 3)",
    ],
)
def test_a_trespass_would_be_found(code):
    assert list(trespasses(ast.parse(code), "winsor/tables/x.py")) != []


# ------------------------------------------------------------------------------ how much it is


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_a_reviewer_can_read_it():
    assert sum(path.read_text().count("\n") for path in FILES) <= MOST_LINES


def test_no_function_is_long():
    long = [
        f"{path.relative_to(CORE)}: {node.name}"
        for path in FILES
        for node in functions(TREES[path])
        if node.end_lineno - node.lineno + 1 > MOST_LINES_OF_A_FUNCTION
    ]
    assert long == []


def public(tree: ast.Module) -> Iterator[ast.AST]:
    """Functions and classes without an underscore, and such methods of such classes."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    for node in tree.body:
        if isinstance(node, kinds) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from (
                    each
                    for each in node.body
                    if isinstance(each, ast.FunctionDef) and not each.name.startswith("_")
                )


def test_everything_public_is_documented():
    missing = [
        f"{path.relative_to(CORE)}: {node.name}"
        for path in FILES
        for node in public(TREES[path])
        if ast.get_docstring(node) is None
    ]
    assert missing == []


def test_the_page_names_every_file():
    """docs/what-you-must-trust.md has a line for each."""
    page = (ROOMS.parent / "docs" / "what-you-must-trust.md").read_text()
    named: set[str] = set()
    for cell in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE):
        first, *others = re.findall(r"`([^`]+)`", cell)
        named |= {first, *(str(Path(first).with_name(other)) for other in others)}
    files = {path.relative_to(CORE).as_posix() for path in FILES if path.name != "__init__.py"}
    assert named == files


# ------------------------------------------------------------------------------- standing alone

BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "sklearn", "pandas"):
            raise ModuleNotFoundError(f"{name} is not installed here", name=name)

sys.meta_path.insert(0, Blocker())
import pytest
code = pytest.main(sys.argv[1:])
import winsor
assert winsor.__file__.startswith(sys.path[0]) and not {"torch", "sklearn"} & set(sys.modules)
raise SystemExit(code)
"""
FAST = ["door", "ledger", "arithmetic", "test_checks.py", "test_randomness.py"]
FAST += ["noise/test_gaussian.py", "noise/test_laplace.py", "sampling/test_samplers.py"]
FAST += ["accounting/test_gaussian.py", "accounting/test_running.py", "accounting/test_rdp.py"]


def test_it_passes_its_tests_in_a_folder_of_its_own_without_torch(tmp_path):
    """Not this file: it looks at the other rooms."""
    without = shutil.ignore_patterns("__pycache__", Path(__file__).name)
    shutil.copytree(CORE, tmp_path / "winsor" / "core", ignore=without)
    shutil.copytree(TESTS, tmp_path / "tests", ignore=without)
    (tmp_path / "winsor" / "__init__.py").write_text("")
    (tmp_path / "alone.py").write_text(BLOCKED)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    command = [sys.executable, "alone.py", "-q", "-x", "-p", "no:cacheprovider"]
    collected = subprocess.run(
        [*command, "--collect-only", "tests"],
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert collected.returncode == 0, collected.stdout[-3000:] + collected.stderr[-3000:]
    done = subprocess.run(
        [*command, *(f"tests/{name}" for name in FAST)],
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def environment(folder: Path) -> dict[str, str]:
    own = {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return {**os.environ, **own}
