"""The package of reproductions: its README and its build file know every paper."""

import importlib
import tomllib
from pathlib import Path

import pytest
from winsor_papers.reproductions.catalogue import PAPERS

ROOT = Path(__file__).parents[3] / "papers"
REPRODUCTIONS = ROOT / "winsor_papers" / "reproductions"
README = (ROOT / "README.md").read_text()
BUILD = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.mark.parametrize("paper", PAPERS)
def test_the_readme_names_every_table_of_a_paper(paper):
    (line,) = [row for row in README.splitlines() if PAPERS[paper].title in row]
    assert f"`{paper.replace('-', '_')}/`" in line
    assert [name.strip("` ") for name in line.split("|")[3].split(",")] == list(
        PAPERS[paper].tables
    )


def test_every_folder_is_built():
    """Folders with Python files are packages, and their data are listed."""
    source = ROOT / "winsor_papers"
    folders = {path.parent for path in source.rglob("*.py")}
    assert all((folder / "__init__.py").exists() for folder in folders)
    data = {path.suffix for path in source.rglob("*") if path.is_file()} - {".py", ".pyc"}
    listed = BUILD["tool"]["setuptools"]["package-data"]["winsor_papers"]
    assert {f"**/*{suffix}" for suffix in data} == set(listed)
    papers = {path.parent.name for path in REPRODUCTIONS.glob("*/__init__.py")}
    assert {paper.replace("-", "_") for paper in PAPERS} == papers


def test_every_entry_point_leads_somewhere():
    for points in BUILD["project"]["entry-points"].values():
        for home in points.values():
            module, name = home.split(":")
            assert callable(getattr(importlib.import_module(module), name))


def test_winsor_itself_does_not_import_the_experiments():
    """They plug in: nothing in winsor names them."""
    package = ROOT.parent / "winsor"
    found = [p for p in package.rglob("*.py") if "winsor_papers.reproductions" in p.read_text()]
    assert found == []
