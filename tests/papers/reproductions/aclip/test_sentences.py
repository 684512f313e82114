"""What the page of the papers says of paper 4 is counted, not typed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[4] / "docs"
METHODS = ("UC", "CC", "DP-SGD", "DP-SGD, step x 10")


@pytest.fixture(scope="module")
def counted():
    spec = importlib.util.spec_from_file_location("averaged", DOCS / "averaged_clipping.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def table(*rows, quick=False):
    """Errors of CC, DP-SGD and DP-SGD with ten times the step; UC has those of CC."""
    lines = [
        {
            "label": {"data": "d", "nominal": f"{epsilon}", "method": method},
            "certified": {"mean": mean, "half_width": 0.01, "seeds": 20},
            "published_certifies": 3.0 if method == "CC" else None,
        }
        for epsilon, errors in enumerate(rows, 1)
        for method, mean in zip(METHODS, (errors[0], *errors), strict=True)
    ]
    return {"quick": quick, "lines": lines}


def test_rows_are_counted_by_their_intervals(counted):
    made = table((0.5, 0.6, 0.4), (0.5, 0.501, 0.501), (0.5, 0.6, 0.6))
    facts = counted.facts({("aclip", "table-2-synthetic"): made})
    assert facts["made_sgd"] == "ahead in 2 and behind in 0 of 3 rows"
    assert facts["made_logistic"] == "ahead in 1 and behind in 1 of 3 rows"
    assert facts["open"] == "ahead in 0 and behind in 0 of 3 rows"
    assert facts["leak"] == "3"
    assert facts["made_ridge"] == facts["real_sgd"] == "not run yet"


def test_smoke_runs_do_not_count(counted):
    assert counted.duels(table((0.5, 0.6, 0.4), quick=True)) == []


def test_curves_that_fall_and_rise_again(counted):
    def line(method, curve):
        label = {"data": "d", "nominal": "1", "method": method}
        return {"label": label, "extra": {"certified by epoch": curve}}

    figure = {"quick": False, "lines": [line("CC", "0.9 0.7"), line("DP-SGD", "0.8 0.6 0.9")]}
    baseline = {"label": {"data": "d", "nominal": "", "method": "baseline"}, "extra": {}}
    figure["lines"].append(baseline)
    assert counted.passing([figure, None]) == "1 of 1"
    assert counted.passing([{**figure, "quick": True}]) == "0 of 0"
