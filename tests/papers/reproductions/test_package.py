"""The package of reproductions: its README and its build file know every paper."""

import tomllib
from pathlib import Path

import pytest
from winsor_papers.reproductions.catalogue import PAPERS

ROOT = Path(__file__).parent.parent.parent / "reproductions"
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("paper", PAPERS)
def test_the_readme_names_every_table_of_a_paper(paper):
    (line,) = [row for row in README.splitlines() if PAPERS[paper].title in row]
    assert f"`{paper.replace('-', '_')}/`" in line
    assert [name.strip("` ") for name in line.split("|")[3].split(",")] == list(
        PAPERS[paper].tables
    )


def test_every_folder_is_built():
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert set(built) == {"winsor_papers.reproductions"} | {
        f"winsor_papers.reproductions.{f}" for f in folders
    }
    assert {paper.replace("-", "_") for paper in PAPERS} == folders


def test_winsor_itself_does_not_import_the_experiments():
    """Only the command looks for them, and only when it runs."""
    package = ROOT.parent / "winsor"
    knowing = [p for p in package.rglob("*.py") if "winsor_papers.reproductions" in p.read_text()]
    assert [path.relative_to(package).as_posix() for path in knowing] == ["cli/reproduce.py"]
