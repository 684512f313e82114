"""The synthetic problems are what they say."""

from __future__ import annotations

import numpy as np
import pytest

from winsor.core.contract import ConfigurationError
from winsor.tails.datasets import NOISES, claims_like, gaussian_design, heavy_linear, moment_rows


@pytest.mark.parametrize("noise", NOISES)
def test_paper_4_problems(noise):
    ridge = heavy_linear(noise, n=20_000)
    assert ridge.x.shape == (20_000, 10)
    assert np.linalg.norm(ridge.coef) == pytest.approx(1.0)
    errors = ridge.y - ridge.x @ ridge.coef
    assert abs(np.mean(errors)) < 0.1
    if noise == "student_t":  # infinite variance: the largest error dwarfs the median
        assert np.abs(errors).max() > 30 * np.median(np.abs(errors))
    logistic = heavy_linear(noise, "logistic", n=20_000)
    assert set(np.unique(logistic.y)) == {0.0, 1.0}
    agreement = np.mean((logistic.x @ logistic.coef > 0) == logistic.y)
    assert 0.6 < agreement < 0.95
    assert np.array_equal(heavy_linear(noise, n=50).x, heavy_linear(noise, n=50).x)


def test_default_size_is_the_papers():
    assert heavy_linear("laplace").x.shape == (100_000, 10)


def test_gaussian_design():
    data = gaussian_design(20_000, 5, degrees=3.0)
    assert np.abs(data.x.std(0) - 1).max() < 0.05
    assert np.linalg.lstsq(data.x, data.y, rcond=None)[0] == pytest.approx(data.coef, abs=0.1)


@pytest.mark.parametrize("family", ["student_t", "pareto"])
@pytest.mark.parametrize("p", [2.0, 2.5, 4.0, 8.0])
def test_the_moment_bound_holds_and_the_mean_is_known(family, p):
    x, mean, moment = moment_rows(100_000, 3, p, family=family, slack=0.5)
    directions = np.random.default_rng(0).standard_normal((3, 5))
    directions /= np.linalg.norm(directions, axis=0)
    sample = (np.abs(x @ directions) ** p).mean(0) ** (1 / p)
    assert (sample <= moment * 1.02).all()
    assert np.abs(x.mean(0) - mean).max() < 0.03


def test_student_t_moment_is_exact():
    """E t^2 = nu/(nu - 2); E t^4 = 3 nu^2/((nu - 2)(nu - 4))."""
    assert moment_rows(10, 1, 2.0, slack=3.0)[2] ** 2 == pytest.approx(5 / 3)
    assert moment_rows(10, 1, 4.0, slack=4.0)[2] ** 4 == pytest.approx(3 * 64 / (6 * 4))


def test_claims_like_has_a_tail_and_a_signal():
    data = claims_like(20_000)
    assert np.abs(data.x).max() <= 1
    assert data.y.max() > 50 * np.median(data.y)
    log = np.log(data.y)
    extended = np.c_[data.x, np.ones(len(log))]
    fitted = extended @ np.linalg.lstsq(extended, log, rcond=None)[0]
    assert 0.3 < 1 - np.var(log - fitted) / np.var(log) < 0.8


@pytest.mark.parametrize(
    "call",
    [
        lambda: heavy_linear("cauchy"),
        lambda: heavy_linear("laplace", "poisson", n=10),
        lambda: heavy_linear("laplace", n=0),
        lambda: moment_rows(10, 1, 1.5),
        lambda: moment_rows(10, 1, 2.0, slack=0.0),
        lambda: moment_rows(10, 1, 2.0, family="cauchy"),
        lambda: gaussian_design(0, 1),
    ],
)
def test_odd_requests_are_refused(call):
    with pytest.raises(ConfigurationError):
        call()
