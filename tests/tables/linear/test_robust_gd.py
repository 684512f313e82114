"""The smoothed truncation of Catoni and Giulini in closed form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate

from winsor.tables.linear.robust_gd import CEILING, smoothed


def phi(u):
    return np.where(np.abs(u) <= np.sqrt(2), u - u**3 / 6, np.sign(u) * CEILING)


@pytest.mark.parametrize("smoothing", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("u", [-3000.0, -50.0, -1.0, 0.0, 1e-9, 0.3, 1.4, 2.0, 10.0, 999.0, 1001.0])
def test_the_closed_form_is_the_expectation(u, smoothing):
    def integrand(z):
        return phi(u * (1 + z / np.sqrt(smoothing))) * np.exp(-z * z / 2) / np.sqrt(2 * np.pi)

    kinks = [(s * np.sqrt(2) / u - 1) * np.sqrt(smoothing) for s in (-1, 1)] if u else []
    inner = sorted(k for k in kinks if abs(k) < 12) or None
    expected = integrate.quad(integrand, -12, 12, points=inner, limit=400)[0]
    assert smoothed(np.array([u]), smoothing)[0] == pytest.approx(expected, abs=2e-6)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1), st.floats(0.01, 100))
def test_it_is_always_bounded_and_odd(values, smoothing):
    u = np.array(values)
    answer = smoothed(u, smoothing)
    assert np.isfinite(answer).all()
    assert (np.abs(answer) <= CEILING).all()
    assert np.allclose(smoothed(-u, smoothing), -answer, atol=1e-9)


def test_what_is_not_a_number_counts_as_nothing():
    broken = np.array([[np.nan, 0.0], [np.inf, -np.inf]])
    answer = smoothed(broken, 4.0)
    assert answer[0].tolist() == [0.0, 0.0]
    assert 0 < answer[1, 0] == -answer[1, 1] <= CEILING
