"""The closed form for Gaussian histories."""

import math

import pytest
from dp_accounting import get_epsilon_gaussian
from hypothesis import given
from hypothesis import strategies as st

from winsor.core.accounting import gaussian

log_mus = st.floats(-8, 7)
log_deltas = st.floats(-30, -1)


@given(log_mus, log_deltas)
def test_epsilon_is_that_of_dp_accounting_rounded_up(log_mu, log_delta):
    mu, delta = math.exp(log_mu), math.exp(log_delta)
    theirs = get_epsilon_gaussian(1 / mu, delta)
    ours = gaussian.epsilon(mu, delta)
    assert theirs - 1e-11 <= ours <= theirs * (1 + 1e-6) + 1e-8


@given(log_mus, log_deltas)
def test_delta_at_epsilon_is_within_the_target(log_mu, log_delta):
    mu, delta = math.exp(log_mu), math.exp(log_delta)
    epsilon = gaussian.epsilon(mu, delta)
    if epsilon > 0:
        assert delta * (1 - 1e-5) <= gaussian.delta(mu, epsilon) <= delta * (1 + 1e-8)


def test_reference_values():
    # Balle & Wang: Phi(mu/2) - Phi(-mu/2) at epsilon 0; 68.27 % of a normal law lies within 1 sd
    assert gaussian.delta(2.0, 0.0) == pytest.approx(0.6826894921, rel=1e-8)
    assert gaussian.epsilon(math.sqrt(10), 1e-5) == pytest.approx(17.86, abs=0.005)


def test_limits():
    assert gaussian.epsilon(0.0, 1e-5) == 0 == gaussian.delta(0.0, 1.0)
    assert gaussian.epsilon(math.inf, 1e-5) == math.inf
    assert gaussian.delta(math.inf, 100.0) == 1
    assert gaussian.total_mu([(2.0, 4), (1.0, 3)]) == 2.0
    assert gaussian.total_mu([(0.0, 1)]) == math.inf
    assert gaussian.total_mu([(0.0, 0)]) == 0
