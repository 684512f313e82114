"""The package of reproductions: its README and its build file know every paper."""

import tomllib
from pathlib import Path

import pytest
from winsor_papers.reproductions.catalogue import PAPERS

ROOT = Path(__file__).parents[3] / "papers"
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("paper", PAPERS)
def test_the_readme_names_every_table_of_a_paper(paper):
    (line,) = [row for row in README.splitlines() if PAPERS[paper].title in row]
    assert f"`{paper.replace('-', '_')}/`" in line
    assert [name.strip("` ") for name in line.split("|")[3].split(",")] == list(
        PAPERS[paper].tables
    )


def test_every_folder_is_built():
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert found == {"find": {"include": ["winsor_papers*"]}}
    reproductions = ROOT / "winsor_papers" / "reproductions"
    folders = {path.parent.name for path in reproductions.glob("*/__init__.py")}
    assert {paper.replace("-", "_") for paper in PAPERS} == folders
