from __future__ import annotations

import numpy as np
import pytest

from winsor.tails import extremes
from winsor.tails.points import log_norms


def logs(x) -> np.ndarray:
    return log_norms(x)[0]


def test_curves_are_the_textbook_formulas():
    z = logs(np.abs(np.random.default_rng(0).standard_t(3, 400)))
    choice = extremes.choose_k(z)
    hill, moments = extremes.hill(z, choice), extremes.moments(z, choice)
    pickands = extremes.pickands(z, choice)
    for k, h, m, p in zip(hill.curve_k, hill.curve, moments.curve, pickands.curve, strict=True):
        d = z[:k] - z[k]
        m1, m2 = d.mean(), (d**2).mean()
        assert h == pytest.approx(m1)
        assert m == pytest.approx(m1 + 1 - 0.5 / (1 - m1**2 / m2))
        q = k // 4
        x = np.exp(z)
        ratio = (x[q - 1] - x[2 * q - 1]) / (x[2 * q - 1] - x[4 * q - 1])
        assert p == pytest.approx(np.log(ratio) / np.log(2))


@pytest.mark.parametrize("alpha", [1.5, 3.0])
def test_all_three_find_a_pareto_index(alpha):
    z = logs(1 + np.random.default_rng(1).pareto(alpha, 200_000))
    choice = extremes.choose_k(z)
    for index in (extremes.hill, extremes.moments, extremes.pickands):
        found = index(z, choice)
        low, high = found.interval
        assert low - 0.03 < 1 / alpha < high + 0.03
    assert extremes.hill(z, choice).alpha == pytest.approx(alpha, rel=0.05)


@pytest.mark.parametrize(
    ("draw", "gamma"),
    [
        (lambda rng, n: rng.exponential(size=n), 0.0),
        (lambda rng, n: 1 - np.sqrt(rng.random(n)), -0.5),  # S = (1 - x)^2: end point 1
    ],
)
def test_moments_and_pickands_see_light_and_bounded_tails(draw, gamma):
    z = logs(draw(np.random.default_rng(3), 300_000))
    choice = extremes.ChosenK(3000, -1.0, 1.0)
    assert extremes.moments(z, choice).gamma == pytest.approx(gamma, abs=0.1)
    assert extremes.pickands(z, choice).gamma == pytest.approx(gamma, abs=0.25)


def test_second_order_parameters_of_a_burr_law():
    """Burr XII with tail index gamma and rho = -1: U(t) = (t^-rho - 1)^(-gamma/rho)."""
    u = np.random.default_rng(4).random(200_000)
    z = logs((1 / u - 1) ** 0.5)
    rho, beta = extremes.second_order(z)
    assert rho == pytest.approx(-1.0, abs=0.3)
    assert beta == pytest.approx(1.0, abs=0.3)


def test_moment_variance_is_continuous_at_zero():
    values = extremes._moment_variance(np.array([-1e-9, 0.0, 1e-9]))
    assert values == pytest.approx([1.0, 1.0, 1.0])


def test_alpha_interval_is_the_reciprocal():
    z = logs(1 + np.random.default_rng(1).pareto(2.0, 2000))
    found = extremes.hill(z, extremes.choose_k(z))
    low, high = found.interval
    assert found.alpha_interval == pytest.approx((1 / high, 1 / low))
    light = extremes.moments(
        logs(np.random.default_rng(0).random(5000)), extremes.ChosenK(200, -1, 1)
    )
    assert light.gamma < 0 and light.alpha == float("inf")
