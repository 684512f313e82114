"""The likelihood against scipy's, the estimates against scipy's censored fit, the bootstrap."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from winsor.tails import weibull
from winsor.tails.points import log_norms, tail_line, tail_points


def sample(n: int = 2000, seed: int = 0, shape: float = 1.0, fraction: float = 0.5):
    z, zeros = log_norms(np.random.default_rng(seed).weibull(shape, n))
    return tail_points(z, zeros, fraction)


def exact(points) -> bool:
    return bool((points.weight == 1).all())


@pytest.mark.parametrize("xi", [0.0, 1e-5, 1e-3, 0.3, 1.0, 6.0])
def test_log_likelihood_is_that_of_scipy(xi):
    points = sample(n=500)
    assert exact(points)
    log_scale, log_theta = 0.1, -0.2
    theta, scale = np.exp(log_theta), np.exp(log_scale)
    if xi == 0:
        law = stats.weibull_min(1 / theta, scale=scale)
    else:
        law = stats.burr12(1 / theta, 1 / xi, scale=scale * xi**-theta)
    x = np.exp(points.z)
    expected = (law.logpdf(x) + points.z).sum()  # densities of log x
    expected += points.below * np.log(law.cdf(np.exp(points.threshold)))
    params = np.array([log_scale, log_theta, xi])
    value, _ = weibull.likelihood_and_score(points, points.weight, points.below, params)
    assert value == pytest.approx(expected, rel=1e-6)


@given(
    a=st.floats(-1, 1), b=st.floats(-1.5, 1.0), xi=st.sampled_from([0.0, 1e-4, 0.01, 0.4, 3.0, 9.0])
)
def test_score_is_the_gradient(a, b, xi):
    points, params = sample(n=300), np.array([a, b, xi])
    _, score = weibull.likelihood_and_score(points, points.weight, points.below, params)
    for j in range(3):
        shift = np.zeros(3)
        shift[j] = 1e-5
        low = params if j == 2 and xi < 1e-5 else params - shift
        values = [
            weibull.likelihood_and_score(points, points.weight, points.below, p)[0]
            for p in (low, params + shift)
        ]
        numeric = (values[1] - values[0]) / (params + shift - low)[j]
        assert score[j] == pytest.approx(numeric, rel=2e-3, abs=2e-2)


def test_straight_fit_agrees_with_scipys_left_censored_fit():
    points = sample(n=600, seed=3, shape=1.4)
    data = stats.CensoredData(
        uncensored=np.exp(points.z), left=np.full(int(points.below), np.exp(points.threshold))
    )
    shape, _, scale = stats.weibull_min.fit(data, floc=0)
    fitted = weibull.fit_weibull(points)
    assert np.exp(fitted.log_theta) == pytest.approx(1 / shape, rel=1e-3)
    assert np.exp(fitted.log_scale) == pytest.approx(scale, rel=1e-3)


def test_bent_fit_finds_a_burr_law():
    law = stats.burr12(1 / 0.8, 1 / 0.5, scale=2.0 * 0.5**-0.8)
    z, _ = log_norms(law.rvs(40_000, random_state=1))
    points = tail_points(z, 0, 0.75)
    bent = weibull.fit_bent(points, weibull.fit_weibull(points))
    truth = np.array([np.log(2.0), np.log(0.8), 0.5])
    errors = np.sqrt(np.diag(bent.covariance))
    assert (np.abs(bent.params - truth) < 4 * errors).all()
    assert bent.gamma == pytest.approx(0.4, abs=4 * bent.gamma_deviation())


def test_bent_fit_of_a_pareto_law_carries_its_index():
    z, _ = log_norms(1 + np.random.default_rng(2).pareto(3, 4000))
    points = tail_points(z, 0, 0.5)
    bent = weibull.fit_bent(points, weibull.fit_weibull(points))
    assert bent.xi > weibull.XI_HELD and bent.free == (0, 1)
    assert bent.gamma == pytest.approx(1 / 3, abs=4 * bent.gamma_deviation())


@given(xi=st.floats(0, 5), depth=st.floats(0.7, 15))
def test_index_at_depth_is_the_slope_of_the_tail_plot(xi, depth):
    fitted = weibull.WeibullFit(0.3, np.log(0.7), xi, 0.0, (0, 1, 2), np.eye(3))
    z = np.log(weibull.quantile(fitted, np.exp(-depth)))
    h = 1e-4
    log_depth = np.log(fitted.depth(np.array([z - h, z + h])))
    slope = (log_depth[1] - log_depth[0]) / (2 * h)
    index = weibull.index_at_depth(np.asarray(np.log(0.7)), np.asarray(xi), depth)
    assert index == pytest.approx(1 / slope, rel=1e-4)


def test_survival_and_quantile_are_inverse():
    for xi in (0.0, 0.5):
        fitted = weibull.WeibullFit(0.3, 0.2, xi, 0.0, (0, 1), np.eye(2))
        x = weibull.quantile(fitted, 1e-4)
        assert fitted.survival(np.array([x]))[0] == pytest.approx(1e-4)


def test_bootstrap_spread_is_the_standard_error():
    points = sample(n=4000, seed=5)
    fitted = weibull.fit_weibull(points)
    params, weight, below = weibull.bootstrap(points, fitted, 400, np.random.default_rng(0))
    errors = np.sqrt(np.diag(fitted.covariance))
    assert params[:2].std(axis=1) == pytest.approx(errors, rel=0.15)
    assert params[:2].mean(axis=1) == pytest.approx(fitted.params[:2], abs=3 * errors.max() / 20)
    # each draw is a maximum: the score of its own resample vanishes
    _, score = weibull.likelihood_and_score(points, weight, below, params[:, :, None])
    assert (np.abs(score[:2]) * errors[:, None] < 0.1).all()


def test_regression_recovers_an_exact_line():
    """Quantiles of Weibull(theta = 1.7, K = 3) at the plotting positions lie on the line."""
    from winsor.tails.points import TailPoints

    n, k = 1000, 400
    depth = np.log(n / (np.arange(1, k + 1) - 0.5))
    z = np.log(3.0) + 1.7 * np.log(depth)
    points = TailPoints(z, np.ones(k), float(z[-1]) - 0.01, float(n - k))
    slope, intercept = tail_line(points, points.weight[None], np.array([points.below]))
    assert 1 / slope[0] == pytest.approx(1.7)
    assert -intercept[0] / slope[0] == pytest.approx(np.log(3.0))
