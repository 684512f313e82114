"""The page that an example ends with, where its result is not a run of `winsor train`.

Runs have `winsor report`; a mean, an additive model or an audit has this page. It shows released
values only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import winsor.report
from winsor.charts import Chart
from winsor.charts.files import render_page
from winsor.contract import Guarantee

STYLE = Path(winsor.report.__file__).with_name("page.css")
OWN = "main { padding-top: 24px; } ul li { padding-left: 0; }"


@dataclass(frozen=True)
class Shown:
    """What an example has to say."""

    title: str
    promise: str
    results: Sequence[tuple[str, str]]
    changes: Sequence[str]
    """What to change for one's own data."""
    charts: Sequence[Chart] = ()
    guarantee: Guarantee | None = field(default=None, repr=False)

    def write(self, folder: Path) -> Path:
        """report.html in ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        page = folder / "report.html"
        conditions = self.guarantee.conditions if self.guarantee is not None else ()
        text = render_page(
            "page.html",
            Path(__file__).parent,
            style=STYLE.read_text(encoding="utf-8") + OWN,
            title=self.title,
            promise=self.promise,
            results=self.results,
            changes=self.changes,
            charts=list(self.charts),
            conditions=conditions,
        )
        page.write_text(text, encoding="utf-8")
        print(self.promise)
        for name, value in self.results:
            print(f"  {name}: {value}")
        print(f"Written: {page}")
        return page
