"""Which pages the site has, in which order, and where each goes.

Pages that programs write (`docs/built.py`) are laid over the repository: build/docs over docs/. A
page of `docs/` that no group names is shown under "More": a new page is never lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from built import BUILT

ROOT = Path(__file__).resolve().parents[2]
HOME = "index.html"

GROUPS: dict[str, tuple[str, ...]] = {
    "Start": (
        "README.md",
        "docs/tour.md",
        "docs/which-rule.md",
        "docs/coming-from-another-library.md",
    ),
    "Gallery": ("examples/gallery/*.md",),
    "Guides": (
        "docs/tables.md",
        "docs/units.md",
        "docs/features.md",
        "docs/tuning-and-metrics.md",
        "docs/several-processes.md",
        "docs/ways-of-drawing.md",
        "docs/callbacks.md",
        "docs/what-mixes-rows.md",
        "docs/modelmix.md",
    ),
    "Trust": (
        "docs/what-you-must-trust.md",
        "docs/for-the-data-protection-officer.md",
        "docs/privacy.md",
        "docs/audit.md",
    ),
    "Rules": ("docs/rules/*.md",),
    "Papers": ("docs/papers.md", "docs/papers/*.md", "docs/theory.md", "docs/fidelity.md"),
    "Reference": ("docs/api/*.md",),
    "Performance": (
        "docs/performance.md",
        "docs/measured-tables.md",
        "benchmarks/README.md",
        "papers/README.md",
    ),
    "More": ("docs/*.md",),
    "Project": (
        "docs/README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "docs/changes-*.md",
        "docs/architecture.md",
        "docs/adr/*.md",
        "docs/licences.md",
    ),
}


@dataclass(frozen=True)
class Page:
    """A Markdown file and its place in the site."""

    source: Path
    """Relative to the repository, as if what is built were committed."""
    group: str
    built: Path = BUILT

    @property
    def target(self) -> str:
        """Where the site has it.

        >>> Page(Path("docs/rules/README.md"), "Rules").target
        'rules/index.html'
        """
        parts = list(self.source.with_suffix(".html").parts)
        if len(parts) == 1:
            return parts[0].lower()
        if parts == ["docs", "README.html"]:
            return "documentation.html"  # index.html is the home page
        if parts[0] in ("docs", "examples"):
            parts = parts[1:]
        if parts[-1] == "README.html":
            parts[-1] = "index.html"
        return "/".join(parts)

    @property
    def text(self) -> str:
        return located(self.source, self.built).read_text(encoding="utf-8")

    @property
    def title(self) -> str:
        """Its first heading, without marks."""
        first = next(line for line in self.text.splitlines() if line.startswith("# "))
        title = first.removeprefix("# ").replace("`", "").replace("*", "")
        return "Read me" if self.source.name == "README.md" and title == "winsor" else title


def located(source: Path, built: Path = BUILT) -> Path:
    """The file that ``source`` names: the repository's, else the one that was built."""
    committed = ROOT / source
    if committed.exists() or source.parts[:1] != ("docs",):
        return committed
    return built / source.relative_to("docs")


def pages(built: Path = BUILT) -> list[Page]:
    """Every page once, group by group."""
    late = [name for name in GROUPS if name != "More"]
    found: dict[Path, Page] = {}
    for group in [*late, "More"]:
        for pattern in GROUPS[group]:
            for source in sorted(_matching(pattern, built), key=_place):
                found.setdefault(source, Page(source, group, built))
    order = list(GROUPS)
    return sorted(found.values(), key=lambda page: order.index(page.group))


def _matching(pattern: str, built: Path) -> set[Path]:
    found = {path.relative_to(ROOT) for path in ROOT.glob(pattern)}
    if pattern.startswith("docs/"):
        inside = built.glob(pattern.removeprefix("docs/"))
        found |= {Path("docs") / path.relative_to(built) for path in inside}
    return found


def _place(source: Path) -> tuple[bool, str]:
    return source.name != "README.md", source.name
