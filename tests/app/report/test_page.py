"""The page: whole, small, and deaf to what names and values try to tell it."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest
from finished_runs import make_run

from winsor.app.report.collect import collect
from winsor.app.report.figures import figures
from winsor.app.report.page import render, to_json

HOSTILE = '</title></script><script>document.title="pwned"</script><img src=x onerror=alert(1)>'


class Elements(HTMLParser):
    """Every tag of a page with its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.found)


def test_everything_the_issue_asks_for_is_there(tmp_path):
    page = render(collect([make_run(tmp_path / "run", monitor="debug")]))
    for words in (
        "Privacy statement",
        "adding or removing one row",
        "Not covered",
        "privacy loss distributions",
        "Ledger, SHA-256",
        "Held-out accuracy",
        "Epsilon spent",
        "Share of rows that are scaled down",
        "Tail of gradient norms",
        "max_grad_norm = 1.0",
        "winsor train",
        "prefers-color-scheme",
        "@media print",
    ):
        assert words in page, words


def test_charts_come_with_their_data(tmp_path):
    keys = {chart.key for chart in figures(collect([make_run(tmp_path / "plain")]))}
    assert keys == {"held-out-0", "held-out-1", "epsilon", "rule-0", "lr"}
    charts = figures(collect([make_run(tmp_path / "debug", monitor="debug")]))
    exposed = {chart.key for chart in charts if chart.not_private}
    names = ("training-loss", "clip-fraction", "noise-to-signal", "norms-0", "tail-0")
    assert exposed == {f"not-private-{name}" for name in names}
    assert all("private rows" in chart.note for chart in charts if chart.not_private)
    charts = figures(collect([make_run(tmp_path / "private", monitor="private")]))
    assert {"monitor-clip-fraction", "monitor-norms-0", "monitor-tail-0"} <= {c.key for c in charts}
    assert not any(chart.not_private for chart in charts)


def test_variants_share_charts_and_colours(tmp_path):
    runs = [
        make_run(tmp_path / f"{name}{seed}", name=name, seed=seed, optimizer={"lr": lr})
        for name, lr in (("a", 0.1), ("b", 0.2))
        for seed in (0, 1)
    ]
    charts = {chart.key: chart for chart in figures(collect(runs))}
    assert [(s.label, s.colour) for s in charts["held-out-0"].series] == [("a", 0), ("b", 1)]
    assert charts["held-out-0"].series[0].band
    assert [s.label for s in charts["epsilon"].series] == ["every variant"]


def test_runs_that_differ_in_their_seed_alone_say_so(tmp_path):
    runs = [make_run(tmp_path / str(seed), steps=4, name="flat", seed=seed) for seed in (1, 2)]
    page = render(collect(runs))
    assert page.count("max_grad_norm = ") == 1
    assert "# that of flat, seed 1, with\nseed = 2\n" in page


def test_nothing_is_loaded_from_anywhere(tmp_path):
    elements = Elements(render(collect([make_run(tmp_path / "run")])))
    for tag, attributes in elements.found:
        for name in ("src", "href", "action", "data"):
            assert (attributes.get(name) or "data:,") == "data:,", (tag, attributes)
    policy = next(a["content"] for t, a in elements.found if "http-equiv" in a)
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy


def test_markup_in_names_and_values_stays_text(tmp_path):
    plain = Elements(render(collect([make_run(tmp_path / "plain", monitor="debug")])))
    run = make_run(
        tmp_path / "hostile",
        monitor="debug",
        name=HOSTILE,
        data={"target": HOSTILE},
        optimizer={"name": "sgd", "lr": 0.1, HOSTILE: HOSTILE},
    )
    page = render(collect([run]))
    hostile = Elements(page)
    assert "<img" not in page and hostile.count("script") == plain.count("script") == 2
    assert [tag for tag, _ in hostile.found] == [tag for tag, _ in plain.found]
    assert not [a for _, a in hostile.found if any(name.startswith("on") for name in a)]


def test_twenty_thousand_steps_are_a_small_page(tmp_path):
    run = make_run(tmp_path / "run", steps=20_000, rate=0.002)
    page = render(collect([run]))
    assert len(page.encode()) < 1_500_000  # the promise is 5 MB


def test_the_json_beside_it_is_complete(tmp_path):
    report = collect([make_run(tmp_path / "run")])
    found = json.loads(json.dumps(to_json(report)))
    (run,) = found["runs"]
    assert run["statement"]["epsilons"][0]["epsilon"] == pytest.approx(
        report.runs[0].curve[-1][1], rel=1e-9
    )
    assert len(run["metrics"]) == 12 and run["config"]["name"] == "tiny" and run["finished"]
    assert run["reproduce"].startswith("winsor train ")
    assert found["variants"][0]["metrics"]["accuracy"]["count"] == 1


def test_an_unfinished_run_has_a_page(tmp_path):
    run = make_run(tmp_path / "run", steps=1, finished=False)
    page = render(collect([run]))
    assert "not finished" in page and "unfinished" in page
