"""The moment bounds lie above an independent quadrature, everywhere, and only just."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from modelmix_allocations import log_density
from scipy import integrate

from winsor.contrib.modelmix.density import GAUSSIAN, Mixed
from winsor.contrib.modelmix.moments import (
    LARGEST_REACH,
    ORDERS,
    excess,
    laplace_log_moments,
    log_moments,
    rates,
)

CHECKED = np.flatnonzero(np.isin(ORDERS, [1.02, 1.1, 1.5, 2.0, 3.0, 7.0, 16.0]))


def quadrature(width, shift, order):
    """h_k(shift) with Gaussian noise by Simpson's rule on E[phi_k(r)]."""
    x = np.linspace(-width / 2 - 8, width / 2 + order * shift + 9, 6001)
    log_f, log_shifted = log_density(x, width), log_density(x - shift, width)
    ratio, f = log_shifted - log_f, np.exp(log_f)
    # Beyond a ratio of e^0.5 the terms of phi_k may overflow one by one, but not times f.
    far = ratio > 0.5
    values = f * excess(np.where(far, 0.0, ratio), np.array([order]))[0]
    direct = (
        np.exp(order * log_shifted - (order - 1) * log_f) - f - order * (np.exp(log_shifted) - f)
    )
    values[far] = direct[far]
    return math.log1p(integrate.simpson(values, x=x))


def laplace_quadrature(width, shift, order):
    half = width / 2

    def tail(t):
        return np.where(t >= 0, np.exp(-np.abs(t)) / 2, 1 - np.exp(-np.abs(t)) / 2)

    def law(x):
        size = np.abs(x)
        return (tail(size - half) - tail(size + half)) / width

    kinks = sorted([-half, half, -half + shift, half + shift, -half - 40, half + 40 + shift])
    total = 0.0
    for a, b in itertools.pairwise(kinks):
        x = np.linspace(a, b, 8001)
        f = law(x)
        ratio = np.log(law(x - shift)) - np.log(f)
        total += integrate.simpson(f * excess(ratio, np.array([order]))[0], x=x)
    return math.log1p(total)


@pytest.mark.parametrize("order", [1.02, 1.5, 2.0, 3.0, 16.0])
def test_excess_is_what_it_says(order):
    for log_ratio in (-5.0, -0.3, -2e-4, 0.0, 1e-9, 3e-4, 0.02, 1.0):
        direct = math.expm1(order * log_ratio) - order * math.expm1(log_ratio)
        ours = excess(np.array([log_ratio]), np.array([order]))[0, 0]
        assert ours == pytest.approx(direct, rel=1e-6, abs=3e-16 * order)
        assert ours >= 0


@given(
    width=st.floats(0.02, 60),
    shift=st.floats(1e-3, 2.0),
    which=st.sampled_from(list(CHECKED)),
)
@settings(max_examples=60)
def test_moment_bound_is_above_the_integral_and_within_half_a_percent(width, shift, which):
    order = float(ORDERS[which])
    shift = min(shift, 20 / order)
    exact = quadrature(width, shift, order)
    bound = float(log_moments(Mixed(GAUSSIAN, width), shift)[which])
    assert bound >= exact * (1 - 1e-9)
    assert bound <= exact * 1.005


@given(width=st.floats(0.02, 60), shift=st.floats(1e-3, 3.0), which=st.sampled_from(list(CHECKED)))
@settings(max_examples=40)
def test_laplace_moment_bound_likewise(width, shift, which):
    order = float(ORDERS[which])
    exact = laplace_quadrature(width, shift, order)
    bound = float(laplace_log_moments(width, shift)[which])
    assert bound >= exact * (1 - 1e-7)  # Simpson's error across the flat middle
    assert bound <= exact * 1.005


def test_moments_out_of_reach_are_not_guessed():
    values = log_moments(Mixed(GAUSSIAN, 5.0), 3.0)
    assert np.array_equal(np.isfinite(values), ORDERS * 3.0 <= LARGEST_REACH)


@pytest.mark.parametrize("width", [0.3, 8.0, 40.0])
@pytest.mark.parametrize("order", [1.1, 2.0, 7.0])
def test_log_moment_is_convex_and_even_in_the_shift(width, order):
    shifts = np.linspace(0.02, 0.8, 14)
    values = np.array([quadrature(width, v, order) for v in shifts])
    assert (np.diff(values, 2) > -1e-10).all()
    assert (np.diff(values) > 0).all()


@given(
    width=st.sampled_from([0.05, 3.1, 55.0]),  # few: each costs a table
    bound=st.floats(1e-3, 1.5),
    share=st.floats(1e-3, 1.0),
    which=st.sampled_from(list(CHECKED)),
)
@settings(max_examples=100)
def test_rate_is_above_every_shift_in_range(width, bound, share, which):
    order = float(ORDERS[which])
    shift = min(max(bound * share, 1e-3), 20 / order)
    rate = float(rates(width, bound)[which])
    gaussian = order * (order - 1) / 2
    assert rate <= gaussian
    # 1e-8: both sides are ratios of small numbers at the smallest shifts
    assert rate >= min(quadrature(width, shift, order) / shift**2, gaussian) * (1 - 1e-8)


@pytest.mark.parametrize("width", [2.0, 10.0, 41.3])
@pytest.mark.parametrize("bound", [0.05, 0.275, 0.55])
def test_rate_is_within_half_a_percent_of_the_supremum(width, bound):
    computed = rates(width, bound)
    for which in CHECKED:
        order = float(ORDERS[which])
        shifts = np.geomspace(1e-3, bound, 12)
        attained = max(quadrature(width, v, order) / v**2 for v in shifts)
        assert attained * (1 - 1e-9) <= computed[which] <= attained * 1.005


@pytest.mark.parametrize("width", [0.5, 20.0, 500.0])
def test_rate_of_tiny_shifts_is_the_fisher_information(width):
    x = np.linspace(-width / 2 - 9, width / 2 + 9, 200001)
    mixed = Mixed(GAUSSIAN, width)
    fisher = integrate.simpson(np.exp(mixed.log_density(x)) * mixed.decay(x) ** 2, x=x)
    limit = ORDERS * (ORDERS - 1) / 2 * fisher
    computed = rates(width, 1e-4)
    assert (computed >= np.minimum(limit, ORDERS * (ORDERS - 1) / 2) * (1 - 1e-7)).all()
    low = ORDERS <= 32  # the slack grows with order times smallest shift
    assert (computed[low] <= limit[low] * 1.01).all()


def test_rate_falls_with_width_and_grows_with_the_coordinate_bound():
    widths = [0.1, 1.0, 8.0, 40.0]
    by_width = np.array([rates(w, 0.5) for w in widths])
    assert (np.diff(by_width, axis=0) <= 0).all()
    by_bound = np.array([rates(40.0, b) for b in (2e-4, 0.01, 0.1, 0.11, 0.5, 1.5)])
    assert (np.diff(by_bound, axis=0) >= 0).all()
