"""Grid losses dominate the true pair everywhere, and equal it on the grid."""

import math

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_mixture_gaussian_mechanism
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from winsor.core.accounting.privacy_losses import (
    TooFine,
    directions,
    mixture_of_gaussians,
    sampled_gaussian,
    subset_gaussian,
)
from winsor.core.events.registry import Grid

log_rates = st.floats(math.log(1e-4), math.log(0.999))
log_multipliers = st.floats(math.log(0.3), math.log(50))


def hockey_stick(pmf, interval, epsilon):
    lowest, probabilities, infinite = pmf
    beyond = (lowest + np.arange(probabilities.size)) * interval - epsilon
    return infinite + float(probabilities @ np.maximum(0.0, -np.expm1(-beyond)))


def gaussian_delta(mu, epsilon):
    ahead = norm.cdf(mu / 2 - epsilon / mu)
    return ahead - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu))


def true_remove(q, nm, epsilon):
    """delta of the sampled Gaussian: q times the Gaussian's at log(1 + (e^eps - 1)/q)."""
    inside = math.expm1(epsilon) / q
    if inside <= -1:
        return -math.expm1(epsilon)
    return q * gaussian_delta(1 / nm, math.log1p(inside))


def true_add(q, nm, epsilon):
    return -math.expm1(epsilon) + math.exp(epsilon) * true_remove(q, nm, -epsilon)


def true_replace(q, nm, epsilon):
    """Both laws are mixtures: integrate beyond the point where the loss is epsilon."""

    def loss(x):
        up = np.logaddexp(math.log1p(-q), math.log(q) + (x - 0.5) / nm**2)
        down = np.logaddexp(math.log1p(-q), math.log(q) + (-x - 0.5) / nm**2)
        return up - down

    x = brentq(lambda x: loss(x) - epsilon, -1000 * nm - 1000, 1000 * nm + 1000, xtol=1e-14)
    upper = (1 - q) * norm.sf(x / nm) + q * norm.sf((x - 1) / nm)
    lower = (1 - q) * norm.sf(x / nm) + q * norm.sf((x + 1) / nm)
    return upper - math.exp(epsilon) * lower


def check(pmf, interval, truth):
    top = (pmf[0] + pmf[1].size) * interval
    for k in (1, 2, 3.5, 7, 20.25, 61):
        for epsilon in (k * interval, -k * interval):
            if abs(epsilon) < top:
                exact, grid = truth(epsilon), hockey_stick(pmf, interval, epsilon)
                assert grid >= exact - 1e-14
                if k == int(k):  # connect-the-dots touches the true curve on the grid
                    assert grid <= exact * (1 + 1e-6) + 1e-11


@given(log_rates, log_multipliers)
def test_sampled_gaussian_dominates_and_touches(log_q, log_nm):
    q, nm = math.exp(log_q), math.exp(log_nm)
    interval = q * math.sqrt(math.expm1(1 / nm**2)) / 10 if nm > 0.7 else 0.01
    grid = Grid(interval, 1e-20)
    remove, add = directions(sampled_gaussian(q, nm, grid, replace=False))
    check(remove, interval, lambda e: true_remove(q, nm, e))
    check(add, interval, lambda e: true_add(q, nm, e))
    (replace,) = directions(sampled_gaussian(q, nm, grid, replace=True))
    check(replace, interval, lambda e: true_replace(q, nm, e))
    for pmf in (remove, add, replace):
        assert pmf[1].sum() + pmf[2] == pytest.approx(1, abs=1e-12)
        assert pmf[2] <= 2e-20


@given(st.floats(0.001, 0.9), st.floats(0.5, 20))
def test_subset_profile_is_balle_barthe_gaboardi(rate, nm):
    interval = rate / nm / 10
    (pmf,) = directions(subset_gaussian(rate, nm, Grid(interval, 1e-20)))
    for k in (0, 1, 5, 12):
        epsilon = k * interval
        inner = math.log1p(math.expm1(epsilon) / rate)
        exact = rate * gaussian_delta(1 / nm, inner)
        assert hockey_stick(pmf, interval, epsilon) == pytest.approx(exact, rel=1e-5, abs=1e-12)
        # the datasets may be swapped, which mirrors the profile
        mirrored = -math.expm1(-epsilon) + math.exp(-epsilon) * exact
        assert hockey_stick(pmf, interval, -epsilon) == pytest.approx(mirrored, rel=1e-5, abs=1e-12)
    assert pmf[1].sum() + pmf[2] == pytest.approx(1, abs=1e-12)


def test_a_mixture_of_two_is_poisson_sampling():
    grid = Grid(1e-3, 1e-20)
    mixture = directions(mixture_of_gaussians(2.0, (0.0, 1.0), (0.9, 0.1), grid))
    sampled = directions(sampled_gaussian(0.1, 2.0, grid, replace=False))
    for ours, theirs in zip(mixture, sampled, strict=True):
        assert ours[0] == theirs[0]
        np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-6, atol=1e-12)


def test_mixture_agrees_with_dp_accounting():
    shifts, probabilities = (0.0, 0.3, 1.0), (0.5, 0.3, 0.2)
    ours = directions(mixture_of_gaussians(2.0, shifts, probabilities, Grid(0.01, 1e-20)))
    theirs = from_mixture_gaussian_mechanism(
        2.0, shifts, probabilities, value_discretization_interval=0.01
    )
    for pmf, reference in zip(ours, (theirs._pmf_remove, theirs._pmf_add), strict=True):
        for epsilon in (0.0, 0.05, 0.5, 2.0):
            expected = reference.get_delta_for_epsilon(epsilon)
            assert hockey_stick(pmf, 0.01, epsilon) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_tiny_losses_are_not_drowned_by_rounding():
    """q = 1e-4, nm = 50: losses of a millionth. The mean of the loss is known to second order."""
    q, nm = 1e-4, 50.0
    interval = q / nm / 16
    remove, _ = directions(sampled_gaussian(q, nm, Grid(interval, 1e-20), replace=False))
    points = (remove[0] + np.arange(remove[1].size)) * interval
    mean = float(remove[1] @ points)
    assert mean == pytest.approx((q / nm) ** 2 / 2, rel=0.01)


def test_a_grid_that_would_fill_the_memory_is_refused():
    with pytest.raises(TooFine):
        sampled_gaussian(0.5, 0.3, Grid(1e-6, 1e-20), replace=False)
