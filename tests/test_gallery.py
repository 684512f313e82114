"""Every example of the gallery runs in its short form and ends with its page."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import axe
import pytest

GALLERY = Path(__file__).parent.parent / "examples" / "gallery"
EXAMPLES = ("images", "text", "claims", "incomes", "somebody_elses_training")


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, str]:
    """What each wrote, run once."""
    folder = tmp_path_factory.mktemp("gallery")
    sys.path.insert(0, str(GALLERY))
    try:
        for name in EXAMPLES:
            importlib.import_module(name).main(["--out", str(folder / name)])
    finally:
        sys.path.remove(str(GALLERY))
        for name in (*EXAMPLES, "page", "options"):
            sys.modules.pop(name, None)
    return {name: next((folder / name).rglob("report.html")).read_text() for name in EXAMPLES}


def test_each_ends_with_its_page(pages):
    for name, text in pages.items():
        assert "<h1>" in text and 'class="promise"' in text, name
    for name in ("text", "claims", "incomes"):
        assert re.search(r"\(epsilon=[\d.]+, delta=[\d.e-]+\)-DP", pages[name]), name
        assert "For your own data" in pages[name] and "<svg" in pages[name]
    assert "(4.00, 0.0001)-differentially private" in pages["images"]


def test_the_mistake_is_found_and_the_honest_loop_is_not_accused(pages):
    text = pages["somebody_elses_training"]
    assert "the honest loop passed, the mistaken one was caught" in text


def test_the_page_of_the_gallery_names_them_all():
    index = (GALLERY / "README.md").read_text()
    made = (GALLERY.parents[1] / "Makefile").read_text()
    for name in EXAMPLES:
        assert f"[{name}.py]({name}.py)" in index and name in made
        assert "--full" in (GALLERY / f"{name}.py").read_text()


def test_axe_finds_nothing(pages, tmp_path):
    assert axe.violations(pages, tmp_path) == {}
