"""Clipped rows: inside the ball, each by itself, and with today's floating-point operations."""

from __future__ import annotations

import numpy as np
import pytest

from winsor.core.arithmetic.rows import clip_factors, clip_rows, row_norms


def _table(seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    return draw.standard_normal((501, 7)) * 10.0 ** draw.integers(-9, 9, (501, 1))


def test_norms_are_those_of_each_row_and_of_no_other():
    x = _table()
    norms = row_norms(x)
    np.testing.assert_allclose(norms, np.linalg.norm(x, axis=1), rtol=1e-14)
    assert all(row_norms(x[i : i + 1])[0] == norms[i] for i in range(0, 501, 50))
    assert np.array_equal(row_norms(x, x[0]), row_norms(x - x[0]))


@pytest.mark.parametrize("radius", [1e-3, 1.0, 2.5e4])
def test_clipped_rows_stay_in_the_ball_and_inner_rows_do_not_change(radius):
    x = _table()
    clipped = clip_rows(x, radius)
    assert (row_norms(clipped) <= radius * (1 + 1e-14)).all()
    inside = row_norms(x) <= radius
    assert inside.any() and not inside.all()
    assert np.array_equal(clipped[inside], x[inside])


def test_rows_without_a_finite_norm_are_zero():
    x = np.array([[np.inf, 0.0], [np.nan, 1.0], [1e200, 1e200], [3.0, 4.0], [0.0, 0.0]])
    with np.errstate(over="ignore"):
        clipped = clip_rows(x, 1.0)
    assert np.array_equal(clipped[:3], np.zeros((3, 2)))
    np.testing.assert_allclose(clipped[3:], [[0.6, 0.8], [0.0, 0.0]])


def test_a_bound_for_each_row_and_a_centre():
    x, centre = _table(), _table(1)[0]
    limits = np.linspace(0.5, 3.0, len(x))
    one_by_one = [clip_rows(x[i : i + 1], limits[i], centre)[0] for i in range(len(x))]
    assert np.array_equal(clip_rows(x, limits, centre), np.array(one_by_one))


def test_factors_have_the_bits_of_the_forms_that_stood_in_tables():
    norms, bound = row_norms(_table()), 0.7
    factors = clip_factors(norms, bound)
    assert np.array_equal(factors, np.minimum(1.0, bound / np.maximum(norms, 1e-300)))
    assert np.array_equal(factors, np.minimum(1.0, bound / (norms + 1e-300)))
    assert np.array_equal(factors, np.minimum(1.0, bound / np.maximum(norms, bound)))
    assert np.array_equal(
        factors, np.where(np.isfinite(norms), bound / np.maximum(norms, bound), 0)
    )
