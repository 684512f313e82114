from __future__ import annotations

import numpy as np
import pytest

from winsor.contract import ConfigurationError
from winsor.tails import charts, plots

CHART = charts.Chart(
    "title",
    "subtitle",
    "x",
    "y",
    lines=(
        charts.Line(
            "band",
            np.array([1.0, 10.0]),
            np.array([1.0, 2.0]),
            low=np.array([0.5, 1.0]),
            high=np.array([2.0, 3.0]),
        ),
        charts.Line("dots", np.array([1.0, 10.0]), np.array([3.0, 4.0]), dots=True),
        charts.Line("dashes", np.array([1.0, 10.0]), np.array([3.0, 1.0]), dashed=True),
    ),
    marks=(charts.Mark(2.0, "left"), charts.Mark(9.0, "right")),
    y_range=(0.1, 10.0),
)


def test_plotly_figure_shows_every_line_and_mark():
    figure = plots.figure(CHART)
    names = [trace.name for trace in figure.data if trace.name]
    assert names == ["band", "dots", "dashes"]
    assert len({trace.line.color for trace in figure.data if trace.name}) == 3
    assert [note.text for note in figure.layout.annotations] == ["left", "right"]
    assert [note.xanchor for note in figure.layout.annotations] == ["left", "right"]
    assert figure.layout.annotations[0].x == pytest.approx(np.log10(2.0))
    assert figure.layout.xaxis.type == "log"
    assert list(figure.layout.yaxis.range) == pytest.approx([-1.0, 1.0])
    assert "title" in figure.layout.title.text and "subtitle" in figure.layout.title.text


def test_html_is_self_contained(tmp_path):
    chart = charts.norm_histogram(np.geomspace(0.1, 10, 500), {"C": 1.0})
    text = plots.save(chart, tmp_path / "norms.html").read_text()
    assert "Per-sample gradient norms" in text
    assert "cdn.plot.ly" not in text.split("</script>")[0] and len(text) > 1_000_000


def test_png_is_drawn_with_matplotlib(tmp_path):
    for name, chart in {
        "lines": CHART,
        "bars": charts.norm_histogram(np.geomspace(0.1, 10, 500), {"C": 1.0}),
    }.items():
        path = plots.save(chart, tmp_path / f"{name}.png")
        from matplotlib.image import imread

        pixels = imread(path)[:, :, :3]
        assert pixels.shape[:2] == (750, 1200)
        assert 0.02 < np.mean(pixels.min(axis=2) < 0.95) < 0.7  # something drawn, on white


def test_png_without_matplotlib_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(ConfigurationError, match=r"winsor\[plots\]"):
        plots.save(CHART, tmp_path / "x.png")


def test_other_endings_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"\.html or \.png"):
        plots.save(CHART, tmp_path / "x.pdf")
