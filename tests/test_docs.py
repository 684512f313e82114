"""Generated documentation is what its generator writes, and links lead somewhere."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from winsor.rules import all_rules

ROOT = Path(__file__).parent.parent


def generator(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rule_pages_are_up_to_date():
    written = {path.name: path.read_text() for path in (ROOT / "docs" / "rules").iterdir()}
    assert written == generator("rule_pages").pages(), "run: python docs/rule_pages.py"


def test_the_page_of_the_papers_is_up_to_date():
    written = (ROOT / "docs" / "papers.md").read_text()
    assert written == generator("paper_page").page(), "run: python docs/paper_page.py"


def test_the_page_of_the_papers_shows_every_number(tmp_path):
    record = {
        "paper": "value", "table": "table-2", "quick": True, "seconds": 9.0,
        "processor_seconds": 4.0, "title": "A <table>", "quantity": "loss", "verdict": "Holds.",
        "notes": ["a note"],
        "lines": [
            {
                "label": {"data": "x|y"}, "printed": "1.5", "certified_epsilon": 0.5,
                "published": {"mean": "inf", "half_width": None, "seeds": 2},
                "certified": {"mean": 2.25, "half_width": 0.5, "seeds": 3},
                "published_certifies": "inf", "extra": {"step": "7"},
            }
        ],
    }  # fmt: skip
    (tmp_path / "value-table-2.json").write_text(json.dumps(record))
    page = generator("paper_page").page(tmp_path)
    assert "| x\\|y | 1.5 | inf | inf | 2.25 ± 0.5 | 0.5 | 7 |" in page
    assert "### A &lt;table&gt;" in page
    assert "**Verdict.** Holds." in page and "* a note" in page and "(quick, 4 s)" in page
    assert "Not run yet: figure-1, figures-2-3." in page


def test_every_rule_has_its_sections():
    for rule in all_rules().values():
        page = ROOT / "docs" / "rules" / f"{rule.__module__.rsplit('.', 1)[1]}.md"
        text = page.read_text()
        for section in ("When to use", "Cost", "Guarantee", "References"):
            assert f"## {section}" in text, f"{page.name} lacks {section}"


PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("benchmarks/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_to_files_exist(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if not target.startswith(("http", "mailto")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
