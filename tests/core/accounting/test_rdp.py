"""Renyi bounds: those of dp-accounting, raised by their rounding, never below the truth."""

import math

import numpy as np
import pytest
from dp_accounting.dp_event import (
    GaussianDpEvent,
    LaplaceDpEvent,
    MixtureOfGaussiansDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    ZCDpEvent,
)
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st

from winsor.core.accounting import rdp
from winsor.core.contract import Neighbouring, UnsupportedEvent, UnsupportedRelation

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE
ORDERS = np.array([1.25, 2.0, 5.0, 30.0])


def sampled(q, nm):
    return PoissonSampledDpEvent(q, GaussianDpEvent(nm))


def test_agrees_with_dp_accounting():
    accountant = RdpAccountant(rdp.ORDERS)
    accountant.compose(sampled(0.01, 1.0), 1000)
    accountant.compose(GaussianDpEvent(5.0), 2)
    history = [(sampled(0.01, 1.0), 1000), (GaussianDpEvent(5.0), 2)]
    assert rdp.epsilon(history, 1e-5, ADD) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-6)
    assert rdp.delta(history, 2.0, ADD) == pytest.approx(accountant.get_delta(2.0), rel=1e-6)
    epsilons = np.array([1.0, 2.0])
    assert rdp.deltas(history, epsilons, ADD)[1] == rdp.delta(history, 2.0, ADD)


def log_mixture(x, q, nm, shift):
    """log density of (1-q) N(0, nm^2) + q N(shift, nm^2)."""
    unshifted, shifted = -(x**2) / (2 * nm**2), -((x - shift) ** 2) / (2 * nm**2)
    norm = 0.5 * math.log(2 * math.pi) + math.log(nm)
    return np.logaddexp(math.log1p(-q) + unshifted, math.log(q) + shifted) - norm


def divergence(order, log_upper, log_lower, step):
    """(1/(a-1)) log of the integral of upper^a lower^(1-a), by the trapezoidal rule."""
    logs = order * log_upper + (1 - order) * log_lower
    return (np.logaddexp.reduce(logs) + math.log(step)) / (order - 1)


@given(st.floats(0.01, 0.9), st.floats(0.8, 5.0), st.sampled_from([1.25, 2.0, 2.5, 5.0]))
def test_sampled_bounds_the_integral_under_both_relations(q, nm, order):
    x, step = np.linspace(-12 * nm - 12, 12 * nm + 12, 20_001, retstep=True)
    upper, noise, mirror = (log_mixture(x, q, nm, shift) for shift in (1.0, 0.0, -1.0))
    at = np.array([order])
    remove = divergence(order, upper, noise, step)
    ours = rdp.sampled(sampled(q, nm), ADD, at)[0]
    assert ours >= remove - 1e-12
    if order == int(order):  # dp-accounting gives up on some fractional orders: infinity
        assert ours == pytest.approx(remove, rel=1e-6, abs=1e-9)
    assert rdp.sampled(sampled(q, nm), REPLACE, at)[0] >= divergence(order, upper, mirror, step)


def test_rounding_cannot_make_a_step_free():
    """q = 1e-6, nm = 50: log-moments of 1e-16, which dp-accounting rounds to 0 or below."""
    exact = 1e-12 / 2500 * ORDERS / 2
    ours = rdp.sampled(sampled(1e-6, 50.0), ADD, ORDERS)
    assert np.all(ours >= exact)
    steps = 10**6
    assert rdp.epsilon([(sampled(1e-6, 50.0), steps)], 1e-12, ADD) > 0


def test_simple_events():
    np.testing.assert_allclose(rdp.gaussian(GaussianDpEvent(2.0), ADD, ORDERS), ORDERS / 8)
    np.testing.assert_allclose(rdp.zcdp(ZCDpEvent(0.5, 0.1), ADD, ORDERS), 0.1 + 0.5 * ORDERS)
    assert np.all(np.isinf(rdp.gaussian(GaussianDpEvent(0.0), ADD, ORDERS)))
    assert np.all(np.isinf(rdp.laplace(LaplaceDpEvent(0.0), ADD, ORDERS)))
    assert np.all(rdp.sampled(sampled(0.0, 1.0), ADD, ORDERS) == 0)
    assert rdp.laplace(LaplaceDpEvent(2.0), ADD, np.array([1000.0]))[0] == pytest.approx(
        0.5, rel=0.01
    )
    assert rdp.epsilon([], 1e-5, ADD) == 0


def test_a_mixture_is_bounded_by_its_largest_shift():
    mixture = MixtureOfGaussiansDpEvent(2.0, (0.0, 0.5, 1.0), (0.8, 0.1, 0.1))
    np.testing.assert_array_equal(
        rdp.divergences([(mixture, 3)], ADD, ORDERS),
        rdp.divergences([(sampled(0.2, 2.0), 3)], ADD, ORDERS),
    )
    nothing = MixtureOfGaussiansDpEvent(2.0, (0.0,), (1.0,))
    assert np.all(rdp.divergences([(nothing, 3)], ADD, ORDERS) == 0)


def test_what_has_no_bound_is_refused():
    with pytest.raises(UnsupportedEvent, match="must hold a GaussianDpEvent"):
        rdp.epsilon([(PoissonSampledDpEvent(0.1, LaplaceDpEvent(1.0)), 1)], 1e-5, ADD)
    subset = SampledWithoutReplacementDpEvent(100, 10, GaussianDpEvent(1.0))
    with pytest.raises(UnsupportedRelation, match="replace_one"):
        rdp.epsilon([(subset, 1)], 1e-5, ADD)
    with pytest.raises(UnsupportedEvent, match="Use Poisson sampling"):
        bad = SampledWithoutReplacementDpEvent(100, 10, LaplaceDpEvent(1.0))
        rdp.epsilon([(bad, 1)], 1e-5, REPLACE)
