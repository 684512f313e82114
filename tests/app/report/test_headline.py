"""What a page says first is what everything on it spent."""

from __future__ import annotations

import pytest
from finished_runs import EVENT, make_run

from winsor.app.report.collect import collect
from winsor.app.report.opening import (
    epsilon,
    headline,
    picture,
    planned_steps,
    published_one_by_one,
    publishing,
)
from winsor.app.report.page import render, to_json
from winsor.app.runs.summary import rounded_up
from winsor.core.accounting import certify


def several(folder, count=3, **changes):
    return [make_run(folder / str(seed), seed=seed, **changes) for seed in range(count)]


def test_runs_on_the_same_rows_open_with_their_sum(tmp_path):
    report = collect(several(tmp_path))
    total = rounded_up(certify([(EVENT, 36)], 1e-3).epsilon)
    alone = rounded_up(certify([(EVENT, 12)], 1e-3).epsilon)
    found = headline(report)
    assert found.promise.startswith(f"All 3 runs together were ({total}, 0.001)-")
    assert found.shown == total != alone and alone in found.meaning and alone in found.note
    page = render(report)
    assert page.index(total) < page.index("Key figures") < page.index(f'"figure">{total}')
    assert to_json(report)["promise"] == found.promise


def test_one_run_opens_with_its_own(tmp_path):
    report = collect([make_run(tmp_path / "run")])
    assert headline(report).promise == report.runs[0].statement.promise


def test_other_splits_of_one_source_add_up(tmp_path):
    runs = [make_run(tmp_path / str(seed), seed=seed, data={"seed": seed}) for seed in (0, 1)]
    assert collect(runs).together["epsilon"] == certify([(EVENT, 24)], 1e-3).epsilon


def test_runs_that_do_not_add_up_say_so(tmp_path):
    one = make_run(tmp_path / "one")
    two = make_run(tmp_path / "two", budget={"relation": "replace_one"}, seed=1)
    found = headline(collect([one, two]))
    assert found.promise.startswith("Each of these 2 runs")
    assert "no one number" in found.meaning and "not added up" in found.note


def test_what_publishing_costs(tmp_path):
    report = collect(several(tmp_path))
    steps = published_one_by_one(report)
    assert steps == [(k, certify([(EVENT, 12 * k)], 1e-3).epsilon) for k in (1, 2, 3)]
    assert publishing(report).series[0].points[-1][1] == report.together["epsilon"]
    assert publishing(collect([report.runs[0].path])).empty


def test_an_unfinished_run_is_shown_against_its_plan(tmp_path):
    path = make_run(tmp_path / "run", finished=False, training={"steps": 30, "epochs": None})
    report = collect([path])
    assert planned_steps(report.runs[0]) == 30
    lines = {line.label: line for line in epsilon(report).series}
    rest = lines["the rest of the plan"]
    assert rest.dashed and rest.points[0][0] == 12
    assert rest.points[-1] == (30.0, certify([(EVENT, 30)], 1e-3).epsilon)
    budget = report.runs[0].config.budget.epsilon
    assert budget is None or f"budget {budget:g}" in lines


@pytest.mark.parametrize(
    ("monitor", "keys"),
    [("off", ["epsilon", "held-out-0"]), ("private", ["epsilon", "held-out-0", "monitor-tail-0"])],
)
def test_the_picture_of_one_run(tmp_path, monitor, keys):
    from winsor.app.report.figures import figures

    report = collect([make_run(tmp_path / "run", monitor=monitor)])
    assert [chart.key for chart in picture(report, figures(report))] == keys
    accuracy = picture(report, figures(report))[1].series[0]
    _, low, high = accuracy.band[-1]
    assert low < accuracy.points[-1][1] < high and 0.05 < high - low < 0.3  # 40 held-out rows
