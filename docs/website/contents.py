"""Which pages the site has, in which order, and where each goes.

A page of `docs/` that no group names is shown under "More": a new page is never lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = "index.html"

GROUPS: dict[str, tuple[str, ...]] = {
    "Start": ("README.md", "docs/tour.md", "docs/which-rule.md", "docs/tails.md"),
    "Gallery": ("examples/gallery/*.md",),
    "Coming from": ("docs/coming-from-*.md",),
    "Guides": (
        "docs/units.md",
        "docs/additive.md",
        "docs/features.md",
        "docs/tuning.md",
        "docs/metrics.md",
        "docs/callbacks.md",
        "docs/ways-of-drawing.md",
        "docs/several-processes.md",
        "docs/modelmix.md",
        "docs/what-mixes-rows.md",
    ),
    "Trust": (
        "docs/for-the-data-protection-officer.md",
        "docs/privacy.md",
        "docs/audit.md",
        "docs/replay.md",
    ),
    "Rules": ("docs/rules/*.md",),
    "Papers": ("docs/papers.md", "docs/papers/*.md", "docs/theory.md", "docs/fidelity.md"),
    "Reference": ("docs/api/*.md",),
    "Benchmarks": (
        "benchmarks/README.md",
        "docs/tables.md",
        "docs/records.md",
        "docs/heavy-tail-edge.md",
        "docs/where-the-microseconds-go.md",
        "docs/cost-of-the-rest.md",
        "papers/README.md",
    ),
    "More": ("docs/*.md",),
    "Project": (
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "docs/architecture.md",
        "docs/adr/*.md",
        "docs/licences.md",
    ),
}


@dataclass(frozen=True)
class Page:
    """A Markdown file of the repository and its place in the site."""

    source: Path
    """Relative to the repository."""
    group: str

    @property
    def target(self) -> str:
        """Where the site has it.

        >>> Page(Path("docs/rules/README.md"), "Rules").target
        'rules/index.html'
        """
        parts = list(self.source.with_suffix(".html").parts)
        if len(parts) == 1:
            return parts[0].lower()
        if parts[0] in ("docs", "examples"):
            parts = parts[1:]
        if parts[-1] == "README.html":
            parts[-1] = "index.html"
        return "/".join(parts)

    @property
    def text(self) -> str:
        return (ROOT / self.source).read_text(encoding="utf-8")

    @property
    def title(self) -> str:
        """Its first heading, without marks."""
        first = next(line for line in self.text.splitlines() if line.startswith("# "))
        title = first.removeprefix("# ").replace("`", "").replace("*", "")
        return "Read me" if self.source.name == "README.md" and title == "winsor" else title


def pages() -> list[Page]:
    """Every page once, group by group."""
    late = [name for name in GROUPS if name != "More"]
    found: dict[Path, Page] = {}
    for group in [*late, "More"]:
        for pattern in GROUPS[group]:
            for path in sorted(ROOT.glob(pattern), key=lambda p: (p.name != "README.md", p.name)):
                source = path.relative_to(ROOT)
                found.setdefault(source, Page(source, group))
    order = list(GROUPS)
    return sorted(found.values(), key=lambda page: order.index(page.group))
