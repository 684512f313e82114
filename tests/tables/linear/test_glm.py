"""Poisson and Gamma regression: estimates, intervals that cover, refusals, sensitivity."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from winsor.core.arithmetic.rows import slack
from winsor.core.contract import ConfigurationError
from winsor.core.noise.gaussian import Gaussian
from winsor.tables.linear import PrivateGammaRegressor, PrivatePoissonRegressor, residual_cut
from winsor.tables.linear.score_rows import (
    Ball,
    Information,
    ScoreRows,
    information_sensitivity,
    release_information,
    square_sensitivity,
)
from winsor.tables.ranges.distribution import Distribution

WEIGHTS = np.array([0.8, -0.5])


def table(kind, n=20_000, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, size=(n, 2))
    years = rng.uniform(0.3, 1.0, n)
    if kind is PrivatePoissonRegressor:
        return x, rng.poisson(years * np.exp(x @ WEIGHTS - 0.5)), years
    return x, years * np.exp(x @ WEIGHTS + 7) * rng.gamma(2, 0.5, n), years


KINDS = [PrivatePoissonRegressor, PrivateGammaRegressor]


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize("kind", KINDS)
def test_coefficients_are_found_within_their_errors(kind, relation):
    x, y, years = table(kind)
    model = kind(epsilon=2.0, relation=relation, random_state=0).fit(x, y, exposure=years)
    assert 0.99 * 2 <= model.epsilon_ <= 2.0
    assert (np.abs(model.coef_ - WEIGHTS) < 4 * model.coef_std_).all()
    assert (model.coef_std_ < 0.12).all()
    assert model.dispersion_ == pytest.approx(1.0 if kind is KINDS[0] else 0.5, rel=0.15)
    assert model.predict(x, exposure=years) == pytest.approx(model.predict(x) * years)
    assert (model.coef_interval_[:, 0] < model.coef_).all()


@pytest.mark.parametrize("kind", KINDS)
def test_intervals_cover(kind):
    """A small experiments/2026-11-tables-without-bounds: 30 tables, 3 parameters each."""
    start = -0.5 if kind is PrivatePoissonRegressor else 7.0
    inside = []
    for seed in range(30):
        x, y, years = table(kind, 8_000, seed)
        model = kind(epsilon=2.0, delta=1e-5, random_state=seed).fit(x, y, exposure=years)
        low, high = np.vstack([model.coef_interval_, model.intercept_interval_]).T
        truth = np.append(WEIGHTS, start)
        inside.append((low <= truth) & (truth <= high))
    assert 0.87 <= np.mean(inside) <= 0.995


def test_rows_beyond_public_bounds_have_no_influence():
    x, y, years = table(PrivateGammaRegressor)
    wild_x, wild_y = x.copy(), y.copy()
    wild_x[:50], wild_y[:50] = 5.0, 1e9
    model = PrivateGammaRegressor(epsilon=2.0, bounds=(-1, 1), random_state=0)
    model.fit(wild_x, wild_y, exposure=years)
    assert (np.abs(model.coef_ - WEIGHTS) < 4 * model.coef_std_ + 0.02).all()


def test_a_direction_that_noise_hides_has_a_wide_interval_and_no_steps():
    hidden = Information(np.diag([1_000.0, 1.0]), noise=1.0, reach=1.0)
    variances = np.diag(hidden.covariance(1.0, 1.0))
    assert variances[0] < 0.01 and variances[1] == pytest.approx(100.0)
    assert hidden.steps(np.ones(2)) == pytest.approx([1e-3, 0.0])
    assert hidden.known(np.array([0.3, 0.3])) == pytest.approx([0.3, 0.0])


def test_no_step_moves_a_score_far():
    seen = Information(np.diag([1_000.0, 100.0]), noise=1.0, reach=4.0)
    assert seen.steps(np.array([1e6, -10.0])) == pytest.approx([0.5, -0.1])


@pytest.mark.parametrize("epsilon", [1.0, 1000.0])
def test_amounts_in_raw_units_have_their_mean(epsilon):
    """Rare categories and a heavy tail: what is unknown of them must not be exponentiated."""
    draw = np.random.default_rng(5)
    shares = np.r_[0.4, 0.3, 0.2, np.full(20, 0.005)]
    kinds = draw.choice(len(shares), 20_000, p=shares / shares.sum())
    x = np.c_[np.eye(len(shares))[kinds], draw.lognormal(3, 1, 20_000)]
    y = 1_000 * draw.lognormal(-0.5, 1, 20_000) * (1 + (kinds == 1))
    y[draw.choice(20_000, 20, replace=False)] *= 300
    model = PrivateGammaRegressor(epsilon=epsilon, random_state=0).fit(x, y)
    predicted = model.predict(x)
    assert 0.6 < predicted.mean() / y.mean() < 1.25
    assert predicted.max() < y.max()
    assert model.predict(1e6 * x).max() < 4 * y.max()


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_is_refused(kind):
    x, y, years = table(kind, 100)
    with pytest.raises(ConfigurationError, match="exposure must be a positive"):
        kind().fit(x, y, exposure=years[1:])
    with pytest.raises(ConfigurationError, match="level must be"):
        kind(level=1.5).fit(x, y)


@pytest.mark.parametrize("kind", KINDS)
def test_amounts_and_exposures_that_cannot_be_count_as_public_numbers(kind):
    """Refusing them would tell of the row that holds one."""
    x, y, years = table(kind, 100)
    odd, filled = (y.copy(), years.copy()), (y.copy(), years.copy())
    odd[0][3], odd[1][5], odd[1][6] = -1.0, 0.0, np.nan
    filled[0][3], filled[1][5:7] = 0.0, 1.0
    fits = [kind(random_state=bytes(32)).fit(x, *each).coef_ for each in (odd, filled)]
    assert np.array_equal(*fits)


# ------------------------------------------------------------------------------------ sensitivity

ANY = st.floats(allow_nan=False, allow_infinity=False, width=64)


class Silent:
    """A door that lets through what it is given, and notes what was paid for."""

    std = 1.0

    def pay(self, mechanism, sampler, sensitivity, steps, shape):
        self.paid = sensitivity
        return self

    def release(self, value):
        return value


@settings(max_examples=60, deadline=None)
@given(arrays.arrays(np.float64, (6, 3), elements=ANY), arrays.arrays(np.float64, 6, elements=ANY))
def test_no_row_moves_a_sum_by_more_than_is_paid_for(values, weights):
    found = [Distribution(np.linspace(-1, 1, 9), np.full(8, 1 / 8))] * 3
    rows = ScoreRows(values, found, None)
    lengths = np.linalg.norm(rows.values, axis=1)
    assert (lengths <= rows.reach * (1 + 1e-12)).all()
    door = Silent()
    one = release_information(rows.values[:1], weights[:1], 3.0, rows.reach, door, Gaussian(1.0))
    assert np.linalg.norm(one.matrix) <= door.paid.add_remove * (1 + slack(1, 10))
    assert information_sensitivity(3.0, rows.reach) == door.paid


def test_bounds_of_squares_and_of_residual_cells():
    assert square_sensitivity(3.0).add_remove == pytest.approx(9.0)
    door = Silent()
    one = residual_cut.residual_counts(np.array([1e300]), door, Gaussian(1.0))
    assert door.paid.add_remove == 1.0 and len(one) == len(residual_cut.cells()) + 1


def test_the_cut_balances_bias_and_noise():
    rng = np.random.default_rng(0)
    places = np.searchsorted(residual_cut.cells(), rng.standard_normal(100_000))
    shares = np.bincount(places, minlength=len(residual_cut.cells()) + 1) / 100_000
    assert residual_cut.typical(shares) == pytest.approx(1.0, rel=0.3)
    assert residual_cut.root_mean_square(shares) == pytest.approx(1.0, rel=0.05)
    cuts = [residual_cut.best_cut(shares, noise, 0.0) for noise in (1e-4, 1e-2, 1.0)]
    assert cuts[0] > cuts[1] > cuts[2]
    assert 2.5 < residual_cut.largest_seen(shares) < 6


@pytest.mark.parametrize("kind", [PrivatePoissonRegressor, PrivateGammaRegressor])
def test_rows_far_outside_are_not_exponentiated(kind):
    """A row that had no vote is predicted like the nearest one that had."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4000, 2))
    y = rng.gamma(4.0, np.exp(x @ [1.0, 0.5]) / 4)
    model = kind(epsilon=5.0, random_state=0).fit(x, y)
    near, far, farther = model.predict([[0.5, 0.2], [1e3, 0.0], [1e300, 0.0]])
    assert near == pytest.approx(np.exp(model.intercept_ + [0.5, 0.2] @ model.coef_))
    assert far == pytest.approx(farther, rel=1e-2) and far < 100.0
    assert model.predict([[-1e300, 0.0]])[0] < near


def test_what_a_model_keeps_of_the_rows_are_two_vectors_and_a_radius():
    ball = Ball(np.array([1.0, 2.0]), np.array([2.0, np.inf]), 3.0)
    inside, outside = ball.nearest(np.array([[3.0, 50.0], [21.0, 2.0]]))
    assert inside.tolist() == [3.0, 50.0]  # a column that looked constant does not count
    assert outside == pytest.approx([7.0, 2.0])
