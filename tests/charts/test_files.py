"""Saved charts show every line, band, dot and mark, and need nothing else."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import chromium
import numpy as np
import pytest

from winsor.charts import Chart, Mark, Series, save, save_all
from winsor.charts.chart import BOTTOM, HEIGHT, TOP, px, py
from winsor.core.contract import ConfigurationError
from winsor.tails import charts

CHART = Chart(
    key="k",
    title="title",
    note="subtitle",
    x_label="x",
    y_label="y",
    series=(
        Series("band", ((1.0, 1.0), (10.0, 2.0)), ((1.0, 0.5, 2.0), (10.0, 1.0, 3.0))),
        Series("dots", ((1.0, 3.0), (10.0, 4.0)), colour=1, dots=True),
        Series("dashes", ((1.0, 3.0), (10.0, 1.0)), colour=2, dashed=True),
    ),
    marks=(Mark(2.0, "left"), Mark(9.0, "right")),
    log_x=True,
    log_y=True,
    y_range=(0.1, 10.0),
)
HISTOGRAM = charts.norm_histogram(np.geomspace(0.1, 10, 500), {"C": 1.0})


def parsed(path) -> ElementTree.Element:
    text = path.read_text(encoding="utf-8").replace(' xmlns="http://www.w3.org/2000/svg"', "")
    return ElementTree.fromstring(text)


def of_class(root, name):
    return [element for element in root.iter() if element.get("class") == name]


def test_the_drawing_shows_every_line_and_mark(tmp_path):
    root = parsed(save(CHART, tmp_path / "lines.svg"))
    groups = [g for g in root.iter("g") if g.get("data-line")]
    assert len(groups) == 3 and len({g.get("class") for g in groups}) == 3
    assert len(groups[0].findall("polygon")) == len(groups[0].findall("polyline")) == 1
    assert len(groups[1].findall("circle")) == 2 and not groups[1].findall("polyline")
    assert groups[2].find("polyline").get("class") == "dashed"
    words = [text.text for text in root.iter("text")]
    assert {"title", "subtitle", "band", "dots", "dashes", "x", "y"} <= set(words)
    notes = of_class(root, "note")
    assert [note.text for note in notes] == ["left", "right"]
    assert [note.get("text-anchor") for note in notes] == ["start", "end"]
    x_axis, y_axis = CHART.axes()
    assert x_axis.log and y_axis.log and (y_axis.low, y_axis.high) == (0.1, 10.0)
    assert float(of_class(root, "mark")[0].get("x1")) == pytest.approx(px(x_axis, 2.0), abs=0.1)
    assert py(y_axis, 10.0) == TOP and py(y_axis, 0.1) == HEIGHT - BOTTOM


@pytest.mark.parametrize("ending", ["html", "svg"])
def test_files_are_self_contained(tmp_path, ending):
    text = save(HISTOGRAM, tmp_path / f"norms.{ending}").read_text(encoding="utf-8")
    assert "Per-sample gradient norms" in text and "C = 1 (clips" in text
    assert set(re.findall(r"https?://[^\s\"'<]*", text)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"src=|@import|url\((?!#)", text)


@pytest.mark.parametrize("name", ["lines", "bars"])
@pytest.mark.parametrize("ending", ["html", "svg"])
def test_a_browser_draws_them_silently(tmp_path, name, ending):
    path = save({"lines": CHART, "bars": HISTOGRAM}[name], tmp_path / f"{name}.{ending}")
    image = tmp_path / "image.png"
    console = chromium.screenshot(path, tmp_path / "profile", image, "--window-size=700,600")
    assert console == []
    assert len(image.read_bytes()) > 8_000  # an empty page is a quarter of that


def test_an_exposed_chart_says_so_in_either_form(tmp_path):
    exposed = Chart("k", "t", "x", "y", CHART.series, not_private=True)
    save_all({"a": exposed, "b": CHART}, tmp_path / "plots")
    for ending in ("html", "svg"):
        assert "NOT PRIVATE" in (tmp_path / "plots" / f"a.{ending}").read_text()
        assert "NOT PRIVATE" not in (tmp_path / "plots" / f"b.{ending}").read_text()


@pytest.mark.parametrize("ending", ["pdf", "png"])
def test_other_endings_are_refused(tmp_path, ending):
    with pytest.raises(ConfigurationError, match=r"\.svg or \.html"):
        save(CHART, tmp_path / f"x.{ending}")
