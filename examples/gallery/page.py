"""What an example ends with: report.html, its figures as .svg files, and results.json.

Runs of `winsor train` have the page of `winsor report`; a mean, an additive model or an audit has
the one made here. All of it shows released values only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from markupsafe import Markup

import winsor.app.report
from winsor.charts import Chart, save
from winsor.charts.files import render_page
from winsor.charts.intervals import IntervalBar, intervals_svg
from winsor.core.contract import Guarantee

STYLE = Path(winsor.app.report.__file__).with_name("page.css")
OWN = "main { padding-top: 24px; } ul li { padding-left: 0; } .scroll td { white-space: normal; }"


@dataclass(frozen=True)
class Ranked:
    """Values of a few named things, one under the other, with their intervals."""

    title: str
    axis: str
    values: Sequence[tuple[str, float, tuple[float, float] | None]]
    note: str = ""

    def svg(self) -> Markup:
        bars = [IntervalBar(name, value, None, 0, ends) for name, value, ends in self.values]
        return intervals_svg(self.axis, bars)


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
    ranked: Sequence[Ranked] = ()

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
            ranked=list(self.ranked),
            conditions=conditions,
        )
        page.write_text(text, encoding="utf-8")
        for chart in self.charts:
            save(chart, folder / f"{re.sub(r'[^a-z0-9]+', '-', chart.key.lower())}.svg")
        keep(folder, self.promise, self.results)
        print(self.promise)
        for name, value in self.results:
            print(f"  {name}: {value}")
        print(f"Written: {page}")
        return page


def keep(folder: Path, promise: str, results: Sequence[tuple[str, str]]) -> None:
    """The numbers of the page, for programs: results.json in ``folder``."""
    text = json.dumps({"promise": promise, "results": list(results)}, indent=1, ensure_ascii=False)
    (folder / "results.json").write_text(text + "\n", encoding="utf-8")
