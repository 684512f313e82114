"""The page on a telephone, measured in a browser, and judged by axe-core."""

from __future__ import annotations

import html
import json
import re

import axe
import chromium
import pytest
from finished_runs import make_run

from winsor.app.report.collect import collect
from winsor.app.report.page import render

MEASURE = """<!doctype html><html lang="en"><body style="margin:0">
<iframe id="page" style="border:0;width:{width}px;height:4000px" srcdoc="{page}"></iframe>
<script>
addEventListener("load", () => {{
  const page = document.getElementById("page").contentDocument;
  const box = (selector) => page.querySelector(selector).getBoundingClientRect();
  const all = (selector) => [...page.querySelectorAll(selector)];
  const svg = page.querySelector(".plot svg");
  const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  const found = {{
    width: page.scrollingElement.scrollWidth,
    tables: all(".scroll").map((s) => [s.clientWidth, s.scrollWidth]),
    ticks: scale * Math.min(...all(".chart .tick").map(
      (t) => parseFloat(getComputedStyle(t).fontSize))),
    columns: new Set(all(".card").map((c) => Math.round(c.getBoundingClientRect().left))).size,
    statement: box(".lead").top, tiles: box(".cards").top, picture: box(".charts").top,
    times: all("time").map((t) => t.getClientRects().length).filter((lines) => lines > 0),
    left: [box("main section").left, box("footer p").left, box("h1").left],
    open: all("details[open]").length, folded: all("details").length,
  }};
  document.body.dataset.found = JSON.stringify(found);
}});
</script></body></html>"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("runs")
    several = [
        make_run(folder / f"{name}{seed}", steps=40, name=name, seed=seed, optimizer={"lr": lr})
        for name, lr in (("flat", 0.1), ("a variant with a long name", 0.2))
        for seed in (0, 1)
    ]
    monitored = make_run(folder / "monitored", monitor="private")
    exposed = make_run(folder / "exposed", monitor="debug", finished=False)
    groups = {"one": [several[0]], "all": several, "tails": [monitored], "exposed": [exposed]}
    return {name: render(collect(runs)) for name, runs in groups.items()}


def measured(page: str, width: int, folder) -> dict:
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    path = folder / "measure.html"
    path.write_text(MEASURE.format(width=width, page=html.escape(text)))
    document, _ = chromium.run(path, folder / "profile", "--virtual-time-budget=3000", "--dump-dom")
    return json.loads(html.unescape(re.search(r'data-found="([^"]*)"', document).group(1)))


@pytest.mark.parametrize("name", ["one", "all", "tails"])
def test_on_a_telephone(pages, tmp_path, name):
    found = measured(pages[name], 390, tmp_path)
    assert found["width"] == 390  # nothing sticks out: wide tables scroll inside their box
    assert all(shown <= 390 for shown, _ in found["tables"])
    assert any(wide > shown for shown, wide in found["tables"])
    assert found["ticks"] >= 10
    assert found["columns"] == 2
    assert found["statement"] < found["tiles"] < found["picture"]
    assert set(found["times"]) == {1}
    assert max(found["left"]) - min(found["left"]) < 2
    assert found["open"] == 0 < found["folded"]


def test_on_a_desk(pages, tmp_path):
    found = measured(pages["all"], 1280, tmp_path)
    assert found["width"] == 1280 and found["columns"] >= 4
    assert found["ticks"] >= 9 and max(found["left"]) - min(found["left"]) < 2


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_nothing(pages, tmp_path, theme, width):
    assert axe.violations(pages, tmp_path, theme, width) == {}


def test_axe_would_find_something(pages, tmp_path):
    broken = pages["one"].replace("<h1>", '<img src="data:,"><h1 style="color: #ddd">', 1)
    (found,) = axe.violations({"broken": broken}, tmp_path).values()
    assert any(fault.startswith("image-alt") for fault in found)
    assert any(fault.startswith("color-contrast") for fault in found)
