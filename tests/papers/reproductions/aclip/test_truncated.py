"""DP-GD in lockstep takes the estimator's steps."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from winsor_papers.reproductions.aclip import truncated
from winsor_papers.reproductions.aclip.fits import ConvexRows, fitted
from winsor_papers.reproductions.aclip.settings import SETTINGS
from winsor_papers.reproductions.aclip.together import Together, truncated_account
from winsor_papers.reproductions.aclip.truncated import by_integral, library, truncated_answers

from winsor.core.prepaid import Receipt
from winsor.tables import RobustGD
from winsor.tables.linear.robust_gd import smoothed
from winsor.tails.datasets import heavy_linear

METHOD = RobustGD(learning_rate=0.05, steps=30, deviation=0.5, record=10)


def rows_of(law, task, n=3000):
    made = heavy_linear(law, task, n=n + 300, seed=3)
    return ConvexRows(made.x[:n], made.y[:n], made.x[n:], made.y[n:])


@pytest.fixture
def noises(monkeypatch):
    """The noise of the estimator that is fitted next, in its sums."""
    found, release = [], Receipt.release

    def noted(self, value):
        before = value.copy()
        released = release(self, value)
        found.append(released - before)
        return released

    monkeypatch.setattr(Receipt, "release", noted)
    return found


@pytest.mark.parametrize("way", ["closed form", "C"])
@pytest.mark.parametrize("task", ["logistic", "ridge"])
@pytest.mark.parametrize("law", ["student_t", "laplace", "chi_squared"])
def test_coefficients_are_those_of_robust_gd(task, law, way, noises, monkeypatch):
    if way == "closed form":
        monkeypatch.setattr(truncated, "library", lambda: None)
    rows = rows_of(law, task)
    model = fitted(rows, task, METHOD, 1.0, None, 5)
    n, d = rows.x.shape
    scale, std, epsilon = truncated_account(n, d, METHOD, 1.0)
    mean_noise = np.array(noises) / n
    both = np.stack([np.zeros_like(mean_noise), mean_noise], axis=1)  # a run without noise beside
    found = truncated_answers(rows.x, rows.y, task, scale, 0.05, both, [10, 20, 30])
    assert np.abs(found[-1, 1] - model.coef_.ravel()).max() < 1e-9
    for point, answer in zip(model.trajectory_, found[:, 1], strict=True):
        assert np.abs(answer - point.coef.ravel()).max() < 1e-9
    assert np.abs(found[-1, 0] - found[-1, 1]).max() > 1e-6
    assert mean_noise.std() == pytest.approx(std, rel=0.15)  # 300 numbers
    assert epsilon == pytest.approx(model.epsilon_, rel=1e-12)


@pytest.mark.parametrize("u", [1e-9, 0.1, 0.1699, 0.1701, 0.9, 3.99, 4.01, 17.0, 900.0, 1e7])
def test_the_table_is_the_expectation_at_every_size(u):
    found = library() or truncated.by_closed_form
    # one row whose residual is -1 at zero: f(-u) and f(u), and nothing else
    x, y, w = np.array([[u, -u, 0.0]]), np.ones(1), np.zeros((6, 3))
    sums = found(x, y, "ridge", w, 1.0)
    want = (by_integral if u > 0.5 else partial(smoothed, smoothing=1.0))(np.array([u]))[0]
    close = 1e-11 if library() is not None else 1e-6
    for minus, plus, nothing in sums:
        assert plus == pytest.approx(want, abs=close)
        assert minus == -plus and nothing == pytest.approx(0, abs=1e-13)


def test_odd_numbers_are_bounded():
    if library() is None:
        return  # the closed form has tests of its own
    x = np.array([[np.nan, np.inf, -np.inf, 0.0]])
    limit = float(by_integral(np.array([1e9]))[0])
    # scores are not numbers either, so that nothing is left of such a row
    with np.errstate(invalid="ignore"):
        sums = library()(x, np.ones(1), "ridge", np.ones((1, 4)), 1.0)
    assert np.abs(sums).max() <= limit


def test_all_seeds_of_an_epsilon_are_one_cell():
    runs = Together(rows_of("laplace", "ridge"), "ridge", SETTINGS["laplace"], (1.0, 2.0), 3)
    method = RobustGD(learning_rate=0.01, steps=12, deviation=0.5)
    found = [runs.fit(method, 1.0, None, seed) for seed in range(3)]
    assert len({fit.error for fit in found}) == 3
    for fit in found:
        assert fit.epochs == [2.0, 4.0, 6.0, 8.0, 10.0, 12.0] and fit.curve[-1] == fit.error < 1
        assert fit.epsilon <= 1.0 and math.isnan(fit.seconds)
