"""Charts as SVG: one way to draw, for reports, tails and documentation. Needs no plotting library.

chart = Chart("losses", "Loss", "step", "loss", (Series("train", points),))
save(chart, "losses.html")      # with values under the pointer; or losses.svg
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from winsor.charts.chart import Bars, Chart, Mark
    from winsor.charts.files import save, save_all
    from winsor.charts.series import Point, Series, over_seeds, thin

__all__ = ["Bars", "Chart", "Mark", "Point", "Series", "over_seeds", "save", "save_all", "thin"]

_HOMES = {
    **dict.fromkeys(("Bars", "Chart", "Mark"), "winsor.charts.chart"),
    **dict.fromkeys(("save", "save_all"), "winsor.charts.files"),
    **dict.fromkeys(("Point", "Series", "over_seeds", "thin"), "winsor.charts.series"),
}


if not TYPE_CHECKING:  # loaded on first use: cards of notebooks need no templates

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'winsor.charts' has no attribute {name!r}.")
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value
