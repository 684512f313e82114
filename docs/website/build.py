"""Write the site after `make docs`: python -m website.build [build/site], docs/ on the path."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from urllib.parse import urlsplit

from built import BUILT
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

import winsor
from website.contents import GROUPS, HOME, ROOT, Page, located, pages
from website.figures import figures
from website.markdown import code, render, slug
from winsor.charts.templates import asset

HERE = Path(__file__).parent
PICTURES = (".svg", ".png", ".pdf", ".html")
SOURCES = {".py": "python", ".toml": "toml", ".txt": "text", ".json": "text"}


class BrokenLink(Exception):
    """A link that leads nowhere."""


class Site:
    """Every page, and the files that they show; ``built`` holds what `docs/built.py` wrote."""

    def __init__(self, built: Path = BUILT) -> None:
        self.built = built
        self.pages = pages(built)
        self.places = {page.source: page.target for page in self.pages}
        self.copied: dict[str, Path] = {}
        self.sources: dict[str, Path] = {}
        loader = FileSystemLoader(HERE)
        self.environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
        self.style = asset("chart.css") + asset("figure.css") + (HERE / "site.css").read_text()
        self.script = (HERE / "site.js").read_text()

    def written(self) -> dict[str, str]:
        """Every HTML file of the site by its place."""
        found = {page.target: self._page(page) for page in self.pages}
        found[HOME] = self._home()
        for target, path in sorted(self.sources.items()):
            found[target] = self._source(target, path)
        return found

    # ---------------------------------------------------------------------------------- pages

    def _page(self, page: Page) -> str:
        done = render(page.text, lambda address: self.link(page, address))
        at = self.pages.index(page)
        return self._framed(
            "page.html",
            page.target,
            title=page.title,
            body=Markup(done.body),
            headings=done.headings if len(done.headings) > 3 else (),
            figures=figures() if page.source == Path("docs/performance.md") else (),
            before=self.pages[at - 1] if at else None,
            after=self.pages[at + 1] if at + 1 < len(self.pages) else None,
        )

    def _home(self) -> str:
        return self._framed("home.html", HOME, title="winsor")

    def _source(self, target: str, path: Path) -> str:
        shown = path.relative_to(ROOT)
        body = code(path.read_text(encoding="utf-8"), SOURCES[path.suffix])
        return self._framed(
            "page.html",
            target,
            title=str(shown),
            body=Markup(f"<h1>{shown}</h1>\n{body}"),
            headings=(),
            figures=(),
            before=None,
            after=None,
        )

    def _framed(self, template: str, target: str, **values: object) -> str:
        up = "../" * target.count("/")
        menu = {
            group: [(page.title, up + page.target, page.target == target) for page in members]
            for group in GROUPS
            if (members := [page for page in self.pages if page.group == group])
        }
        return self.environment.get_template(template).render(
            up=up,
            menu=menu,
            slug=slug,
            version=winsor.__version__,
            style=Markup(self.style),
            script=Markup(self.script),
            **values,
        )

    # ---------------------------------------------------------------------------------- links

    def link(self, page: Page, address: str) -> str:
        """The address in the site of what ``page`` calls ``address``."""
        parts = urlsplit(address)
        if parts.scheme or not parts.path:
            return address
        source = Path(os.path.normpath(page.source.parent / parts.path))
        place = self._place(page, source)
        anchor = f"#{parts.fragment}" if parts.fragment else ""
        return os.path.relpath(place, os.path.dirname(page.target) or ".") + anchor

    def _place(self, page: Page, source: Path) -> str:
        path = located(source, self.built)
        if not path.exists() or source.parts[:1] == ("..",):
            raise BrokenLink(f"{page.source} links to {source}, which does not exist")
        if path.is_dir():
            source = source / "README.md"
        if source in self.places:
            return self.places[source]
        if path.suffix in PICTURES:
            self.copied[str(source)] = path
            return str(source)
        if path.suffix in SOURCES:
            self.sources[f"source/{source}.html"] = path
            return f"source/{source}.html"
        raise BrokenLink(f"{page.source} links to {source}, which is no page of the site")


def build(folder: Path, built: Path = BUILT) -> int:
    """Write the site into ``folder``, which is emptied first; return the number of its pages."""
    site = Site(built)
    files = site.written()
    shutil.rmtree(folder, ignore_errors=True)
    for target, text in files.items():
        path = folder / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for target, source in site.copied.items():
        path = folder / target
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, path)
    return len(files)


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "site")
    print(f"Written: {build(target)} pages; open {target / HOME}")
