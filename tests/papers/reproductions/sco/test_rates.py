"""Paper 2: slopes on small experiments."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from winsor_papers.reproductions.sco.rates import (
    Curve,
    LinearLoss,
    RateExperiment,
    figure,
    risk_curve,
)

from winsor.core.contract import ConfigurationError

SMALL = RateExperiment(sizes=(2000, 16000), seeds=6, steps=8, signals=(0.5, 2.0))


@pytest.mark.parametrize("p", [2, 4, 8])
def test_the_risk_of_simple_clipping_falls_at_the_theorys_rate(p):
    curve = risk_curve("simple", p, SMALL)
    assert curve.theory == pytest.approx(-(1 - 1 / p))
    assert abs(curve.slope / curve.theory - 1) < 0.15


def test_the_iterative_method_has_the_same_rate():
    setting = RateExperiment(sizes=(1000, 64000), seeds=12, steps=5, groups=5, signals=(0.5, 2.0))
    curve = risk_curve("iterative", 4, setting)
    assert abs(curve.slope / curve.theory - 1) < 0.15


@pytest.mark.parametrize("d", [2, 5, 10])
def test_iterative_updating_updates_at_every_dimension(d):
    setting = RateExperiment(d=d, sizes=(2000, 4000), seeds=1, steps=2, signals=(1.0,))
    assert risk_curve("iterative", 4, setting).updates > 1
    assert risk_curve("iterative", 4, replace(setting, printed=True)).updates > 1
    assert risk_curve("geometric median", 4, setting).updates is None


def test_the_linear_loss_has_the_row_as_gradient():
    loss = LinearLoss()
    assert loss.residual(np.zeros(3), np.zeros(3)).tolist() == [-1.0, -1.0, -1.0]
    assert loss.value(np.array([2.0]), np.zeros(1)).tolist() == [-2.0]


def test_unknown_methods_are_refused():
    with pytest.raises(ConfigurationError, match="method must be"):
        risk_curve("averaged", 2)


def test_the_figure_has_each_curve_and_its_slope():
    curve = Curve("simple", 4.0, (100, 1000), (1.0, 0.2))
    plot = figure([curve, curve])
    assert len(plot.series) == 4
    assert plot.log_x and plot.log_y
    theory = np.log([y for _, y in plot.series[1].points])
    assert (theory[1] - theory[0]) / np.log(10) == pytest.approx(-0.75)
