"""Generated documentation is what its generator writes, and links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from winsor.rules import all_rules

ROOT = Path(__file__).parent.parent


def rule_pages():
    spec = importlib.util.spec_from_file_location("rule_pages", ROOT / "docs" / "rule_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rule_pages_are_up_to_date():
    written = {path.name: path.read_text() for path in (ROOT / "docs" / "rules").iterdir()}
    assert written == rule_pages().pages(), "run: python docs/rule_pages.py"


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
