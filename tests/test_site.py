"""The site: whole, with links that lead somewhere, no network, and nothing for axe-core to find."""

from __future__ import annotations

import os
from html.parser import HTMLParser
from pathlib import Path

import axe
import built
import pytest
from website import build
from website.contents import ROOT, Page, pages
from website.markdown import render


class Links(HTMLParser):
    """Addresses that a page uses, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.used: list[tuple[str, str]] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("href", "src"):
                self.used.append((tag, value or ""))
            if name == "id":
                self.anchors.add(value)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """What `make docs` writes into build/docs."""
    folder = tmp_path_factory.mktemp("docs")
    built.write(built.files(), folder)
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory, written) -> Path:
    folder = tmp_path_factory.mktemp("site")
    assert build.build(folder, written) >= 70
    return folder


@pytest.fixture(scope="module")
def texts(site) -> dict[str, str]:
    return {str(p.relative_to(site)): p.read_text() for p in sorted(site.rglob("*.html"))}


def test_every_page_of_the_documentation_is_there(texts, written):
    every = pages(written)
    found = {page.source for page in every}
    for path in [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *ROOT.glob("benchmarks/*.md")]:
        assert path.relative_to(ROOT) in found, path
    for path in written.rglob("*.md"):
        assert Path("docs") / path.relative_to(written) in found, path
    targets = [page.target for page in every]
    assert len(set(targets)) == len(targets) and set(targets) < set(texts)


def test_every_link_leads_somewhere(site, texts):
    links = {name: Links(text) for name, text in texts.items()}
    for name, page in links.items():
        for _, address in page.used:
            if address.startswith(("http", "data:", "mailto")):
                continue
            path, _, anchor = address.partition("#")
            place = os.path.normpath(os.path.join(os.path.dirname(name), path)) if path else name
            assert (site / place).is_file(), f"{name} links to {address}"
            if anchor and place in links:
                assert anchor in links[place].anchors, f"{name} links to {address}"


def test_nothing_is_loaded_from_the_network(texts):
    for name, text in texts.items():
        for tag, address in Links(text).used:
            assert tag == "a" or not address.startswith(("http", "//")), (name, address)
        assert "@import" not in text and "url(http" not in text


def test_the_home_page_shows_the_way(texts):
    home = texts["index.html"]
    for words in ("Rows", "Bounded", "Noised", "Ledger", "Number", "Choose your path", "PyTorch"):
        assert f">{words}<" in home
    for words in ("Hugging Face", "scikit-learn", "Command line", "Auditor", "Data protection"):
        assert words in home
    assert texts["performance.html"].count('<svg viewBox="0 0 560') == 3


def test_a_link_that_leads_nowhere_is_refused(written):
    site = build.Site(written)
    page = Page(Path("docs/tour.md"), "Start")
    assert site.link(page, "rules/README.md#flat") == "rules/index.html#flat"
    assert site.link(page, "../examples/demo.py") == "source/examples/demo.py.html"
    assert site.link(page, "https://pypi.org") == "https://pypi.org"
    for address in ("nowhere.md", "../../elsewhere.md"):
        with pytest.raises(build.BrokenLink, match="links to"):
            site.link(page, address)


def test_code_tables_and_anchors():
    text = "# A\n\n## The `same`\n\n## The same\n\n| | b |\n|---|---|\n| 1 | 2 |\n\n"
    text += "```python\nx = 1\n```\n\n    indented\n"
    done = render(text, lambda address: address)
    assert done.headings == (("the-same", "The same"), ("the-same-1", "The same"))
    assert 'role="region" aria-label="Table 1"' in done.body and "<th></th>" not in done.body
    assert '<pre tabindex="0"><code><span class="n">x</span>' in done.body
    assert '<pre tabindex="0"><code>indented' in done.body


BATCHES = 4
ALIKE = ("api/", "rules/", "adr/", "papers/")
"""Folders whose pages come out of one mould: the three shortest of each stand for all."""


def looked_at(texts):
    by_length = sorted(texts, key=lambda name: (len(texts[name]), name))
    alike = [[name for name in by_length if name.startswith(folder)][3:] for folder in ALIKE]
    left_out = {name for names in alike for name in names}
    return {name: text for name, text in sorted(texts.items()) if name not in left_out}


@pytest.mark.parametrize("batch", range(BATCHES))
def test_axe_finds_nothing(texts, tmp_path, batch):
    """Each page in light or in dark, in turns, and the home page in both and on a telephone."""
    mine = dict(list(looked_at(texts).items())[batch::BATCHES])
    assert axe.violations(mine, tmp_path, ["light", "dark"][batch % 2]) == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_on_a_telephone(texts, tmp_path, theme):
    few = ("index.html", "readme.html", "performance.html", "rules/flat.html")
    assert axe.violations({name: texts[name] for name in few}, tmp_path, theme, 390) == {}
