"""Charts as SVG: one way to draw, for reports, tails and documentation. Needs no plotting library.

chart = Chart("losses", "Loss", "step", "loss", (Series("train", points),))
save(chart, "losses.html")      # with values under the pointer; or losses.svg
"""

from winsor.charts.chart import Bars, Chart, Mark
from winsor.charts.files import save, save_all
from winsor.charts.series import Point, Series, over_seeds, thin

__all__ = ["Bars", "Chart", "Mark", "Point", "Series", "over_seeds", "save", "save_all", "thin"]
