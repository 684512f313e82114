"""From moments to sampled divergences: suprema are upper bounds, and the known cases come out."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from winsor.contrib.modelmix.moments import ORDERS
from winsor.core.contract import Neighbouring
from winsor.core.events.sampled_moments import integer_bounds, kappa, lower_hull, sampled_rdp, under


def phi(a, y):
    return math.expm1(a * math.log1p(y)) - a * y if y > -1 else a - 1


@given(
    a=st.floats(1.02, 1.98),
    gap=st.floats(0, 0.9),
    q=st.floats(1e-4, 1.0),
    y=st.one_of(st.floats(-1, -0.01), st.floats(0.01, 10), st.floats(10, 1e7)),
)
@settings(max_examples=300)
def test_kappa_is_above_the_quotient_everywhere(a, gap, q, y):
    b = min(2.0, a + gap)
    assert kappa(a, b, q) >= phi(a, q * y) / phi(b, y) * (1 - 1e-7)


@pytest.mark.parametrize("q", [1e-3, 0.02, 0.5, 1.0])
def test_kappa_in_the_cases_known_in_closed_form(q):
    for a in (1.1, 1.5, 1.9):
        # b = a: q^a, reached as y grows; b = 2: phi_a(-q), reached at y = -1.
        assert kappa(a, a, q) == pytest.approx(q**a, rel=1e-6)
        assert kappa(a, 2.0, q) == pytest.approx(phi(a, -q), rel=1e-3)


def test_kappa_grows_with_the_rate():
    values = [kappa(1.3, 1.6, q) for q in (1e-4, 1e-3, 0.01, 0.1, 0.5, 1.0)]
    assert values == sorted(values)


def test_hull_interpolates_a_convex_function_and_ignores_bad_points():
    x = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    y = np.array([0.0, 1.0, 4.0, 9.0, 16.0])
    at = np.array([1.0, 1.5, 3.5, 5.0])
    assert lower_hull(x, y, at) == pytest.approx([0.0, 0.5, 6.5, 16.0])
    y[2] = 100.0  # an upper bound that the chord between its neighbours beats
    assert lower_hull(x, y, np.array([3.0]))[0] == pytest.approx(5.0)
    y[4] = np.inf
    assert lower_hull(x, y, np.array([4.5]))[0] == np.inf


def exact_sampled_gaussian(q, noise, order):
    """By quadrature with 30 digits; `dp_accounting` is loose at fractional orders."""
    with mpmath.workdps(30):

        def integrand(x):
            ratio = mpmath.exp((2 * x - 1) / (2 * noise**2))
            return mpmath.npdf(x, 0, noise) * (1 - q + q * ratio) ** order

        cuts = [-12 * noise, -4 * noise, 0, 1, 4 * noise, order + 4 * noise, order + 12 * noise]
        return float(mpmath.log(mpmath.quad(integrand, cuts)) / (order - 1))


@pytest.mark.parametrize("q,noise", [(0.01, 1.0), (0.2, 0.7), (0.001, 2.0), (1.0, 1.5)])
def test_gaussian_moments_give_the_sampled_gaussian(q, noise):
    """Exact at whole orders, above but near in between."""
    moments = ORDERS * (ORDERS - 1) / (2 * noise**2)
    for order in (1.02, 1.53, 2.0, 2.5, 8.0):
        ours = sampled_rdp(ORDERS, moments, q, np.array([order]))[0]
        exact = exact_sampled_gaussian(q, noise, order)
        assert ours >= exact * (1 - 1e-8)
        if order == math.floor(order):
            assert ours == pytest.approx(exact, rel=1e-6)
        elif order < 2:
            assert ours <= exact * 1.15


def test_moments_between_the_tabulated_orders_cost_little():
    moments = ORDERS * (ORDERS - 1) / 2
    full = np.arange(2.0, 200.0)
    sparse = sampled_rdp(ORDERS, moments, 0.3, np.array([50.0, 150.0]))
    dense = integer_bounds(full * (full - 1) / 2, 0.3)[[48, 148]] / [49, 149]
    assert (sparse >= dense * (1 - 1e-12)).all()
    assert (sparse <= dense * 1.01).all()


def test_without_sampling_the_divergence_is_the_moment():
    moments = ORDERS * (ORDERS - 1) / 2
    orders = np.array([1.1, 1.5, 2.0, 5.0])
    assert sampled_rdp(ORDERS, moments, 1.0, orders) == pytest.approx(orders / 2, rel=2e-3)


def test_unknown_moments_leave_their_orders_unbounded():
    moments = np.where(ORDERS <= 3, ORDERS * (ORDERS - 1) / 2, np.inf)
    bound = sampled_rdp(ORDERS, moments, 0.1, np.array([1.5, 2.0, 3.0, 3.5, 20.0]))
    assert np.array_equal(np.isfinite(bound), [True, True, True, False, False])


def test_bound_grows_with_the_rate():
    moments = ORDERS * (ORDERS - 1) / 2
    orders = np.array([1.1, 1.7, 2.0, 6.0, 30.0])
    bounds = [sampled_rdp(ORDERS, moments, q, orders) for q in (1e-3, 0.01, 0.1, 0.11, 0.9, 1.0)]
    assert (np.diff(bounds, axis=0) > 0).all()


def test_replace_one_is_above_the_divergence_of_opposite_mixtures():
    """Two records on opposite sides of the common part, by quadrature."""
    q, noise = 0.1, 1.0
    x = np.linspace(-14, 14, 8001)
    centre, right, left = -(x**2) / 2, -((x - 1) ** 2) / 2, -((x + 1) ** 2) / 2
    p = np.logaddexp(math.log1p(-q) + centre, math.log(q) + right)
    r = np.logaddexp(math.log1p(-q) + centre, math.log(q) + left)
    moments = ORDERS * (ORDERS - 1) / (2 * noise**2)
    for order in (1.3, 2.0, 4.0):
        log_sum = special.logsumexp(order * p + (1 - order) * r) + math.log(x[1] - x[0])
        exact = (log_sum - 0.5 * math.log(2 * math.pi)) / (order - 1)
        bound = under(
            Neighbouring.REPLACE_ONE,
            lambda a: sampled_rdp(ORDERS, moments, q, a),
            np.array([order]),
        )[0]
        assert exact <= bound
