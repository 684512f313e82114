"""Paper 2: slopes on small experiments, and Theorem 6 as a published claim."""

from __future__ import annotations

import numpy as np
import pytest
from winsor_reproductions.sco.rates import (
    Curve,
    Experiment,
    LinearLoss,
    figure,
    largest_epsilon,
    parallel_history,
    risk_curve,
    theorem_6_claim,
    theorem_6_rho,
)

from winsor.accounting.account import account
from winsor.contract import ConfigurationError, Neighbouring

SMALL = Experiment(sizes=(2000, 16000), seeds=6, steps=8, signals=(0.5, 2.0))


@pytest.mark.parametrize("p", [2, 4, 8])
def test_the_risk_of_simple_clipping_falls_at_the_theorys_rate(p):
    curve = risk_curve("simple", p, SMALL)
    assert curve.theory == pytest.approx(-(1 - 1 / p))
    assert abs(curve.slope / curve.theory - 1) < 0.15


def test_the_iterative_method_has_the_same_rate():
    setting = Experiment(sizes=(8000, 64000), seeds=4, steps=5, groups=5, signals=(0.5, 2.0))
    curve = risk_curve("iterative", 4, setting)
    assert abs(curve.slope / curve.theory - 1) < 0.15


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
    assert len(plot.data) == 4
    assert plot.layout.xaxis.type == plot.layout.yaxis.type == "log"
    theory = np.log(np.array(plot.data[1].y))
    assert (theory[1] - theory[0]) / np.log(10) == pytest.approx(-0.75)


@pytest.mark.parametrize(("k", "claimed", "true"), [(1000, 6.714, 0.4755), (10**6, 0.2123, 0.4129)])
def test_theorem_6_at_its_largest_epsilon(k, claimed, true):
    """PRIVACY, section 5: weaker than parallel composition for small k, unsound for large k."""
    epsilon = largest_epsilon(k, 1e-5)
    assert epsilon == pytest.approx(claimed, rel=1e-3)
    rho = theorem_6_rho(epsilon, 1e-5, k)
    certified = account(parallel_history(rho), 1e-5, Neighbouring.REPLACE_ONE)
    assert certified.epsilon == pytest.approx(true, rel=1e-3)
    claim = theorem_6_claim(0.9 * rho, 1e-5, k)
    assert theorem_6_rho(claim.published_epsilon, 1e-5, k) == pytest.approx(0.9 * rho)
    assert "published, not certified" in str(claim)
    with pytest.raises(TypeError):
        claim < certified.epsilon  # noqa: B015
    with pytest.raises(ConfigurationError, match="rho must be at most"):
        theorem_6_claim(1.1 * rho, 1e-5, k)
