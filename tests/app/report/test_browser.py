"""The page in a real browser: drawn, silent on the console, and not to be talked into anything.

Screenshots are kept in build/report/.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

import chromium
import pytest
from finished_runs import make_run

from winsor.app.report.collect import collect
from winsor.app.report.page import render

ARTEFACTS = Path(__file__).parents[3] / "build" / "report"
PAYLOAD = '</script></title><script>document.title = "pwned"</script>'

PROBE = """
<script>
addEventListener("load", () => {
  const svg = document.querySelector('svg[data-chart="held-out-0"]');
  const box = svg.getBoundingClientRect();
  svg.dispatchEvent(new PointerEvent("pointermove", {clientX: box.left + box.width / 2}));
  const tip = svg.parentElement.querySelector(".tip");
  document.body.dataset.tip = tip.hidden ? "" : tip.textContent;
  document.querySelector(".legend button").click();
  document.body.dataset.off = document.querySelectorAll("g.off").length;
  document.getElementById("theme").click();
  document.body.dataset.theme = document.documentElement.dataset.theme;
  document.body.dataset.drawn = document.querySelectorAll("svg.chart polyline").length;
  document.body.dataset.height = Math.round(box.height);
});
</script>
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("runs")
    runs = [
        make_run(folder / f"{name}{seed}", steps=40, name=name, seed=seed, monitor="debug")
        for name in ("flat", "automatic")
        for seed in (0, 1)
    ]
    return render(collect(runs))


def without_policy(page: str) -> str:
    return re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)


def test_charts_are_drawn_and_alive(page, tmp_path):
    """The probe is our own script, so for it alone the policy is taken out."""
    path = tmp_path / "page.html"
    path.write_text(without_policy(page).replace("</body>", PROBE + "</body>"))
    document, console = chromium.dom(path, tmp_path / "profile")
    body = re.search(r"<body([^>]*)>", document).group(1)
    found = dict(re.findall(r'data-([a-z]+)="([^"]*)"', body))
    assert console == []
    assert int(found["drawn"]) >= 10 and int(found["height"]) > 100
    assert found["tip"].startswith("step ") and "flat: " in found["tip"]
    assert found["off"] == "1"
    assert found["theme"] == "dark"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_console_errors_and_a_screenshot(page, tmp_path, scheme):
    path, image = tmp_path / "page.html", ARTEFACTS / f"{scheme}.png"
    image.unlink(missing_ok=True)
    path.write_text(page)
    dark = ("--force-dark-mode", "--blink-settings=preferredColorScheme=0")
    flags = ("--window-size=1200,3000", *(dark if scheme == "dark" else ()))
    assert chromium.screenshot(path, tmp_path / "profile", image, *flags) == []
    content = image.read_bytes()
    assert content.startswith(b"\x89PNG") and struct.unpack(">II", content[16:24]) == (1200, 3000)
    assert len(content) > 50_000  # an empty page is a tenth of that


def hostile_page(tmp_path: Path) -> str:
    return render(collect([make_run(tmp_path / "run", name=PAYLOAD, seed=3)]))


def title(document: str) -> str:
    return re.search(r"<title>(.*?)</title>", document, re.DOTALL).group(1)


def test_a_name_with_markup_does_not_run(tmp_path):
    path = tmp_path / "page.html"
    path.write_text(hostile_page(tmp_path))
    document, console = chromium.dom(path, tmp_path / "profile")
    assert title(document).startswith("&lt;/script&gt;") and console == []


def test_the_test_would_notice(tmp_path):
    """The same name unescaped does run without the policy, and is stopped by the policy."""
    page = hostile_page(tmp_path)
    broken = page.replace("<h1>", f"<h1>{PAYLOAD}", 1)
    path = tmp_path / "page.html"
    path.write_text(without_policy(broken))
    document, _ = chromium.dom(path, tmp_path / "profile")
    assert title(document) == "pwned"
    path.write_text(broken)
    document, console = chromium.dom(path, tmp_path / "profile")
    assert title(document) != "pwned"
    assert any("Content Security Policy" in line for line in console)
