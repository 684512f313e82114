"""One-run bounds: against the definitions, against another form of the recursion, by simulation."""

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from winsor.audit.claims import gaussian_claim, gaussian_epsilon, gaussian_mu
from winsor.audit.guesses import (
    claim_refuted,
    curve_refuted,
    gaussian_mu_bound,
    pointwise_epsilon,
    pointwise_p_value,
)
from winsor.core.contract import ConfigurationError


def gaussian_inverse(mu):
    return lambda a: float(ndtr(ndtri(min(a, 1.0)) - mu)) if a > 0 else 0.0


def right_guesses(mu, m, guesses, rng):
    """The best adversary against m independent Gaussian releases of shift mu."""
    coins = rng.random(m) < 0.5
    order = np.argsort(rng.standard_normal(m) + mu * coins)
    half = guesses // 2
    return int((~coins[order[:half]]).sum() + coins[order[m - (guesses - half) :]].sum())


def test_without_delta_the_pointwise_bound_is_a_binomial_tail():
    p = 1 / (1 + np.exp(-1.5))
    assert pointwise_p_value(100, 40, 35, 1.5, 0.0) == pytest.approx(binom.sf(34, 40, p))
    assert pointwise_p_value(100, 40, 0, 1.5, 0.1) == 1.0


def test_the_delta_term_of_the_pointwise_bound_is_its_maximum():
    m, r, v, epsilon, delta = 50, 20, 18, 1.0, 1e-3
    p = 1 / (1 + np.exp(-epsilon))
    terms = [sum(binom.pmf(j, r, p) for j in range(max(0, v - i), v)) / i for i in range(1, v + 1)]
    expected = binom.sf(v - 1, r, p) + 2 * m * delta * max(terms)
    assert pointwise_p_value(m, r, v, epsilon, delta) == pytest.approx(expected)


def test_the_pointwise_epsilon_is_where_the_p_value_crosses_alpha():
    epsilon = pointwise_epsilon(1000, 200, 180, 1e-5, 0.05)
    assert pointwise_p_value(1000, 200, 180, epsilon - 0.01, 1e-5) <= 0.05
    assert pointwise_p_value(1000, 200, 180, epsilon + 0.01, 1e-5) > 0.05
    assert pointwise_epsilon(1000, 200, 100, 1e-5, 0.05) == 0.0


def reference_recursion(least, m, guesses, right, alpha):
    """Mahloujifar et al. 2024, Algorithm 2, in its own variables: r and h are masses over m."""
    h, r = alpha * (guesses - right) / m, alpha * right / m
    for i in range(right - 1, -1, -1):
        new = max(h, least(r))
        r += i / (guesses - i) * (new - h)
        h = new
    return r + h > guesses / m


@pytest.mark.parametrize(("m", "guesses"), [(50, 50), (200, 60), (1000, 200)])
@pytest.mark.parametrize("mu", [0.3, 1.0, 2.0])
def test_tails_and_masses_lead_to_the_same_verdict(m, guesses, mu):
    least = gaussian_inverse(mu)
    verdicts = [
        (
            curve_refuted(least, m, guesses, right, 0.05),
            reference_recursion(least, m, guesses, right, 0.05),
        )
        for right in range(guesses // 2, guesses)
    ]
    assert [ours for ours, _ in verdicts] == [theirs for _, theirs in verdicts]


@pytest.mark.parametrize(("m", "guesses", "mu"), [(10, 10, 0.5), (100, 20, 0.5), (100, 100, 1.5)])
def test_a_true_claim_is_refuted_no_more_often_than_alpha(m, guesses, mu):
    rng = np.random.default_rng(0)
    least = gaussian_inverse(mu)
    refuted = {right: curve_refuted(least, m, guesses, right, 0.1) for right in range(guesses + 1)}
    count = sum(refuted[right_guesses(mu, m, guesses, rng)] for _ in range(1_000))
    assert count <= 100 + 3 * np.sqrt(90)


def test_more_right_guesses_never_refute_less():
    bounds = [gaussian_mu_bound(500, 100, right, 0.05) for right in range(50, 101, 5)]
    assert bounds == sorted(bounds) and bounds[0] == 0.0 and bounds[-1] > 1.0


def test_the_curve_bound_beats_the_pointwise_one_and_stays_below_the_truth():
    rng = np.random.default_rng(1)
    mu = gaussian_mu(8.0, 1e-5)
    right = right_guesses(mu, 1000, 200, rng)
    by_curve = gaussian_epsilon(gaussian_mu_bound(1000, 200, right, 0.05), 1e-5)
    by_point = pointwise_epsilon(1000, 200, right, 1e-5, 0.05)
    assert 2.0 < by_point < by_curve < 8.0
    assert by_curve > 3.5


def test_a_claim_on_a_grid_is_no_easier_to_refute_than_its_curve():
    mu = 0.8
    for right in range(60, 101, 4):
        if claim_refuted(gaussian_claim(mu), 500, 100, right, 0.05):
            assert curve_refuted(gaussian_inverse(mu), 500, 100, right, 0.05)
    assert claim_refuted(gaussian_claim(mu), 500, 100, 100, 0.05)


@pytest.mark.parametrize(("m", "guesses", "right"), [(10, 11, 5), (10, 5, 6), (10, 0, 0)])
def test_impossible_counts_are_refused(m, guesses, right):
    with pytest.raises(ConfigurationError):
        pointwise_p_value(m, guesses, right, 1.0, 1e-5)
