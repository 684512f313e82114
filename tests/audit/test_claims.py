"""Claims as curves: exact for Gaussians, cautious between grid points, ordered by noise."""

import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given
from hypothesis import strategies as st

from winsor.audit.claims import (
    Claim,
    certified_claim,
    gaussian_claim,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    point_claim,
    scaled,
)
from winsor.core.accounting import account
from winsor.core.contract import ConfigurationError, Neighbouring, UnsupportedEvent

ADD = Neighbouring.ADD_OR_REMOVE_ONE


@pytest.mark.parametrize("mu", [0.05, 0.9, 4.0])
def test_gaussian_delta_agrees_with_dp_accounting(mu):
    reference = pld.from_gaussian_mechanism(1 / mu, value_discretization_interval=1e-3)
    for epsilon in (0.0, 0.5, 3.0):
        exact = float(gaussian_delta(epsilon, mu))
        assert exact == pytest.approx(reference.get_delta_for_epsilon(epsilon), rel=5e-3, abs=1e-9)


@given(st.floats(0.1, 30), st.floats(-10, -3))
def test_gaussian_mu_and_epsilon_are_inverse(epsilon, log_delta):
    delta = 10**log_delta
    assert gaussian_epsilon(gaussian_mu(epsilon, delta), delta) == pytest.approx(epsilon, rel=1e-6)


@given(st.floats(0.05, 5), st.floats(1e-6, 0.999))
def test_the_power_of_a_gaussian_claim_is_never_below_its_trade_off_curve(mu, false_positive):
    from scipy.stats import norm

    exact = norm.sf(norm.isf(false_positive) - mu)
    power = float(gaussian_claim(mu).power(false_positive))
    assert exact - 1e-9 <= power <= exact + 1e-3


@given(st.floats(0.05, 3), st.floats(1e-4, 0.99))
def test_least_false_positive_inverts_power(mu, true_positive):
    claim = gaussian_claim(mu)
    b = claim.least_false_positive(true_positive)
    assert float(claim.power(b)) >= true_positive - 1e-9
    if b > 1e-6:
        assert float(claim.power(b * 0.999)) < true_positive


def test_epsilon_between_grid_points_is_an_upper_bound_and_close():
    mu = 0.7
    claim = gaussian_claim(mu)
    for delta in (1e-3, 1e-5, 3e-8):
        exact = gaussian_epsilon(mu, delta)
        assert exact <= claim.epsilon(delta) <= exact + 0.02


def test_a_point_claim_says_nothing_at_smaller_deltas():
    claim = point_claim(2.0, 1e-5)
    assert claim.epsilon(1e-5) == 2.0
    assert claim.epsilon(1e-6) == math.inf
    assert float(claim.power(0.01)) == pytest.approx(math.exp(2) * 0.01 + 1e-5)


def test_a_certified_claim_is_the_accountants_curve():
    history = [(dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(1.2)), 50)]
    claim = certified_claim(history, ADD, points=8)
    assert claim.epsilon(1e-5) == pytest.approx(account(history, 1e-5, ADD).epsilon, rel=1e-3)
    assert (np.diff(claim.deltas) <= 0).all()


def test_scaling_reaches_the_noise_of_every_event():
    inner = dp_event.GaussianDpEvent(2.0)
    history = [
        (inner, 1),
        (dp_event.LaplaceDpEvent(2.0), 1),
        (dp_event.PoissonSampledDpEvent(0.1, inner), 2),
        (dp_event.SampledWithoutReplacementDpEvent(10, 3, inner), 1),
        (dp_event.MixtureOfGaussiansDpEvent(2.0, (1.0, 0.5), (0.5, 0.5)), 1),
    ]
    more = scaled(history, 1.5)
    assert [count for _, count in more] == [1, 1, 2, 1, 1]
    noise = [more[0][0], more[1][0], more[2][0].event, more[3][0].event]
    assert [event.noise_multiplier for event in noise] == [3.0] * 4
    assert more[4][0].standard_deviation == 3.0
    with pytest.raises(UnsupportedEvent):
        scaled([(dp_event.NoOpDpEvent(), 1)], 2.0)


def test_malformed_claims_are_refused():
    with pytest.raises(ConfigurationError):
        Claim("uneven", np.zeros(2), np.zeros(3))
    with pytest.raises(ConfigurationError, match="mu"):
        gaussian_claim(0.0)
