from __future__ import annotations

import numpy as np
import pytest

from winsor.core.contract import ConfigurationError
from winsor.tails import charts, fit


@pytest.fixture(scope="module")
def norms():
    return np.abs(np.random.default_rng(0).standard_t(3, 3000))


@pytest.fixture(scope="module")
def fitted(norms):
    return fit(norms)


def test_histogram_shares_and_labels(norms):
    chart = charts.norm_histogram(norms, {"C": 1.0, "small": 0.1})
    edges, heights = chart.bars.edges, chart.bars.heights
    assert sum(heights) == pytest.approx(100, abs=0.2)  # the lowest 0.1 % are left out
    assert edges[-1] >= norms.max()
    assert [mark.x for mark in chart.marks] == [0.1, 1.0]
    assert f"clips {100 * np.mean(norms > 1.0):.3g} %" in chart.marks[1].label


def test_tail_chart_points_lie_on_the_empirical_depth(norms, fitted):
    chart = charts.tail_chart(fitted)
    tail = next(line for line in chart.series if line.label == "tail of the sample")
    x = np.sort(norms)[::-1]
    assert tail.points[0][0] == pytest.approx(x[0])
    assert tail.points[9][1] == pytest.approx(np.log(3000 / 9.5))
    fit_line = next(line for line in chart.series if line.label.startswith("fit"))
    fit_x, fit_y = np.transpose(fit_line.points)
    near = np.interp(np.log(x[30]), np.log(fit_x), fit_y)
    assert near == pytest.approx(np.log(3000 / 30.5), rel=0.1)
    assert any(line.dashed for line in chart.series) == fitted.is_bent


def test_trade_is_the_clipping_bias_and_the_noise(norms):
    trade = charts.bias_noise_trade(norms, d=100, noise_multiplier=2.0, batch_size=50)
    for i in (0, 60, 120, 159):
        c = trade.thresholds[i]
        assert trade.bias[i] == pytest.approx(np.maximum(norms - c, 0).mean(), abs=1e-9)
        assert trade.noise[i] == pytest.approx(2.0 * c * 10 / 50)
    assert trade.bias[-1] == 0
    inside = trade.total[np.searchsorted(trade.thresholds, trade.best)]
    assert inside == trade.total.min() < min(trade.total[0], trade.total[-1])
    assert charts.trade_chart(trade).marks[0].label.startswith("best")


def test_more_noise_wants_a_smaller_threshold(norms):
    best = [
        charts.bias_noise_trade(norms, d=100, noise_multiplier=s, batch_size=50).best
        for s in (0.2, 1.0, 4.0)
    ]
    assert best == sorted(best, reverse=True) and best[0] > best[-1]


def test_stability_chart_holds_three_curves_and_the_chosen_k(fitted):
    chart = charts.stability_chart(fitted)
    assert [line.label for line in chart.series] == ["Hill", "moments", "Pickands"]
    assert chart.marks[0].x == fitted.hill.k
    hill = chart.series[0]
    assert len(hill.band) == len(hill.points)
    for (x, y), (at, low, high) in zip(hill.points, hill.band, strict=True):
        assert x == at and low <= y <= high


def test_nothing_to_draw_is_refused():
    with pytest.raises(ConfigurationError, match="nothing to draw"):
        charts.norm_histogram(np.zeros(5))
    with pytest.raises(ConfigurationError, match="must be a positive finite number"):
        charts.bias_noise_trade([1.0], d=0, noise_multiplier=1.0, batch_size=1)
