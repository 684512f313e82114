"""The drawing has every point in its place, and no text of it is markup."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from winsor.charts.axes import axis
from winsor.charts.chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Bars, Chart
from winsor.charts.intervals import IntervalBar, intervals_svg
from winsor.charts.series import Series

HOSTILE = "<script>alert(1)</script> & \"x\" 'y'"


def chart(**changes) -> Chart:
    series = (
        Series("one", ((0.0, 0.0), (10.0, 1.0)), ((0.0, 0.0, 0.5), (10.0, 0.5, 1.0))),
        Series(HOSTILE, ((5.0, 0.5),), colour=9, dashed=True),
    )
    return Chart("k", HOSTILE, "step", "accuracy", series, **changes)


def parse(svg) -> ElementTree.Element:
    return ElementTree.fromstring(str(svg))


def test_points_are_where_they_belong():
    root = parse(chart().svg())
    lines = root.findall(".//polyline")
    ends = f"{LEFT:.1f},{HEIGHT - BOTTOM:.1f} {WIDTH - RIGHT:.1f},{TOP:.1f}"
    assert lines[0].get("points") == ends
    assert lines[1].get("class") == "dashed"
    assert len(root.findall(".//polygon")) == 1
    assert len(root.findall(".//circle")) == 1  # a line of one point is a dot
    data = chart().data()
    assert data["lines"][0]["points"][1] == [WIDTH - RIGHT, TOP, "10", "1"]
    assert data["lines"][1]["colour"] == 1


def test_text_is_text():
    for svg in (chart().svg(), intervals_svg(HOSTILE, [IntervalBar(HOSTILE[:20], 1.0, 0.1, 0)])):
        assert "<script" not in str(svg)
        root = parse(svg)
        assert root.get("aria-label").startswith(HOSTILE)
        assert not [element for element in root.iter() if "script" in element.tag]


@pytest.mark.parametrize("log", [False, True])
def test_values_without_a_place_do_not_break_the_drawing(log):
    series = (Series("a", ((0.0, 1e30), (1.0, 0.0), (2.0, 5.0))),)
    root = parse(Chart("k", "t", "x", "y", series, log_x=log, log_y=log).svg())
    for line in root.findall(".//polyline"):
        numbers = [float(n) for pair in line.get("points").split() for n in pair.split(",")]
        assert all(-1 <= n <= WIDTH + 1 for n in numbers)


def test_intervals():
    estimates = [
        IntervalBar("a", 0.9, 0.05, 0),
        IntervalBar("a very long name of a variant of all", 0.8, None, 1),
    ]
    root = parse(intervals_svg("accuracy", estimates))
    bars = [bar for bar in root.iter() if bar.get("class") == "whisker"]
    widths = [float(bar.get("x2")) - float(bar.get("x1")) for bar in bars]
    assert widths[0] > 10 and widths[1] == 0
    assert any(text.text == "a very long name of a variant…" for text in root.iter("text"))


def test_empty_charts_say_so():
    assert Chart("k", "t", "x", "y", (Series("a", ()),)).empty
    assert not chart().empty


def test_place_is_a_share_of_the_axis():
    line = Series("a", ((1.0, 1.0), (100.0, 1.0)))
    logarithmic = Chart("k", "t", "x", "y", (line,), log_x=True)
    assert logarithmic.axes()[0].at(10.0) == pytest.approx(0.5)
    assert Chart("k", "t", "x", "y", (line,)).axes()[0].at(9.9) < 0.1


def test_bars_stand_on_the_axis_and_fill_their_bins():
    bars = Bars((1.0, 10.0, 100.0), (5.0, 10.0))
    root = parse(Chart("k", "t", "x", "y", bars=bars, log_x=True, y_range=(0.0, 10.0)).svg())
    first, second = (r for r in root.iter("rect") if r.get("class") == "bar")
    inner = (WIDTH - LEFT - RIGHT) / 2
    assert float(first.get("width")) == float(second.get("width")) == inner
    assert float(second.get("height")) == HEIGHT - TOP - BOTTOM == 2 * float(first.get("height"))
    assert float(second.get("y")) == TOP


def test_steps_of_two_and_a_half_are_named_as_they_are():
    assert axis([0.0, 12.1]).labels() == ["0.0", "2.5", "5.0", "7.5", "10.0", "12.5"]
    assert axis([0.0, 12.0]).labels() == ["0", "2", "4", "6", "8", "10", "12"]
    assert axis([0.0, 0.012]).labels() == [
        "0.0000",
        "0.0025",
        "0.0050",
        "0.0075",
        "0.0100",
        "0.0125",
    ]
    assert axis([0.0, 10.0]).labels() == ["0", "2", "4", "6", "8", "10"]


def test_intervals_whose_ends_are_not_alike_are_drawn_and_named():
    bars = [
        IntervalBar("a", 20_000.0, None, 0, (19_000.0, 25_000.0)),
        IntervalBar("b", 1.0, 0.1, 1),
    ]
    svg = intervals_svg("income", bars)
    assert "20,000 (19,000 to 25,000)" in svg and "1 ± 0.1" in svg
    assert bars[0].ends == (19_000.0, 25_000.0) and bars[1].ends == (0.9, 1.1)
