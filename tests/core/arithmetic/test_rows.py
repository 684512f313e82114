"""Rows in the arithmetic of bounded sums: of any magnitude inside their ball, each by itself."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from winsor.core.arithmetic import rows as arithmetic
from winsor.core.arithmetic.rows import BLOCK, clip_rows, row_norms, slack

MAGNITUDES = 10.0 ** np.arange(-320.0, 309.0, 4.0)


def _table(seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    return draw.standard_normal((501, 7)) * 10.0 ** draw.integers(-9, 9, (501, 1))


def _any_magnitudes(n: int, d: int, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    rows = draw.uniform(-1, 1, (n, d)) * draw.choice(MAGNITUDES, (n, d))
    rows[: n // 2] = draw.uniform(-1, 1, (n // 2, d)) * draw.choice(MAGNITUDES, (n // 2, 1))
    return np.where(draw.random((n, d)) < 0.1, -0.0, rows)


def _norm(row: np.ndarray) -> float:
    """The norm by exact fractions, rounded at the end."""
    square = sum(Fraction(float(x)) ** 2 for x in row)
    if square == 0:
        return 0.0
    shift = (square.numerator.bit_length() - square.denominator.bit_length()) // 2
    return math.ldexp(math.sqrt(square / Fraction(4) ** shift), shift)


def test_norms_are_those_of_exact_arithmetic_for_any_magnitudes():
    rows = _any_magnitudes(400, 3)
    norms = row_norms(rows)
    for row, norm in zip(rows, norms, strict=True):
        assert norm == pytest.approx(_norm(row), rel=1e-14, abs=5e-324)


def test_rows_of_any_magnitude_are_cut_to_any_radius_and_no_shorter():
    rows = _any_magnitudes(400, 3, 1)
    lengths = np.array([_norm(row) for row in rows])
    for radius in (1e-120, 1e-9, 1.0, 1e120):
        cut = np.array([_norm(row) for row in clip_rows(rows, radius)])
        wanted = np.minimum(lengths, radius)
        np.testing.assert_allclose(cut, wanted, rtol=1e-14, atol=1e-320)


def test_norms_are_those_of_each_row_and_of_no_other():
    x = _table()
    norms = row_norms(x)
    np.testing.assert_allclose(norms, np.linalg.norm(x, axis=1), rtol=1e-14)
    assert np.array_equal(row_norms(x, x[0]), row_norms(x - x[0]))


@pytest.mark.parametrize("d", [1, 2, 3, 7, 8, 64, 1000, 8192, 8193, 20_001])
def test_what_is_computed_of_a_row_does_not_hang_on_the_others(d):
    """`einsum` alone gives rows of more than 8,192 columns other bits beside other rows, BLAS
    rows of ten."""
    x = np.random.default_rng(d).standard_normal((9, d))
    weights = np.random.default_rng(0).standard_normal((d, 2))
    for i in range(9):
        assert row_norms(x[i : i + 1])[0] == row_norms(x)[i]
        assert np.array_equal(clip_rows(x[i : i + 1], 0.1)[0], clip_rows(x, 0.1)[i])
        both = arithmetic.products(x[i : i + 1], weights)[0], arithmetic.products(x, weights)[i]
        assert np.array_equal(*both)
    np.testing.assert_allclose(arithmetic.products(x, weights), x @ weights, atol=1e-10)
    turned = arithmetic.products(np.asfortranarray(x), weights)
    assert np.array_equal(arithmetic.products(x, weights[:, 1]), turned[:, 1])


@pytest.mark.parametrize("radius", [1e-3, 1.0, 2.5e4])
def test_clipped_rows_stay_in_the_ball_and_inner_rows_do_not_change(radius):
    x = _table()
    clipped = clip_rows(x, radius)
    assert (row_norms(clipped) <= radius * (1 + 1e-14)).all()
    inside = row_norms(x) <= radius
    assert inside.any() and not inside.all()
    assert np.array_equal(clipped[inside], x[inside])


def test_rows_that_are_not_finite_are_zero_and_huge_ones_count_in_full():
    x = np.array([[np.inf, 0.0], [np.nan, 1.0], [-np.inf, np.nan], [1e308, 1e308], [0.0, -0.0]])
    np.testing.assert_allclose(
        clip_rows(x, 1.0), [[0, 0], [0, 0], [0, 0], [0.5**0.5, 0.5**0.5], [0, 0]]
    )
    assert np.array_equal(row_norms(x[:3]), np.full(3, np.inf))


def test_a_bound_for_each_row_and_a_centre():
    x, centre = _table(), _table(1)[0]
    limits = np.linspace(0.0, 3.0, len(x))
    one_by_one = [clip_rows(x[i : i + 1], limits[i], centre)[0] for i in range(len(x))]
    assert np.array_equal(clip_rows(x, limits, centre), np.array(one_by_one))


def test_squares_of_numbers_too_large_are_infinite():
    assert np.array_equal(arithmetic.squares(np.array([1e200, -3.0])), [np.inf, 9.0])


@pytest.mark.parametrize("n", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_sums_err_by_less_than_is_charged(n):
    """Alike rows, whose rounding errors add up, and one that is not."""
    rows = np.full((n, 3), 0.1 / 3**0.5)
    rows[-1:] = -1 / 3**0.5
    exact = [float(sum(map(Fraction, column))) for column in rows.T.tolist()] if n else [0.0] * 3
    error = np.linalg.norm(arithmetic.sum_rows(rows) - exact)
    assert error <= slack(n, 3) / 2 and (error <= 1e-13 * max(n, 1))
    cells = np.arange(n) % 2
    halves = arithmetic.sum_weights(cells, rows[:, 0], 2)
    np.testing.assert_allclose(halves.sum(), exact[0], atol=1e-10)


def test_what_is_charged_is_small_and_grows_with_public_numbers_only():
    assert slack(16_384, 10) < 1.6e-8 and slack(10**8, 10**6) < 1e-4
    assert slack(10, 10) < slack(11, 10) < slack(11, 11)
