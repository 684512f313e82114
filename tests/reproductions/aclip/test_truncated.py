"""DP-GD by a table is DP-GD."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
from winsor_reproductions.aclip import truncated
from winsor_reproductions.aclip.fits import ConvexRows, fitted
from winsor_reproductions.aclip.truncated import TabulatedGD, by_integral, library

from winsor.data import heavy_linear
from winsor.linear import RobustGD
from winsor.linear.robust_gd import smoothed

METHOD = RobustGD(learning_rate=0.05, steps=30, deviation=0.5, record=10)


@pytest.mark.parametrize("task", ["logistic", "ridge"])
@pytest.mark.parametrize("law", ["student_t", "laplace", "chi_squared"])
def test_coefficients_are_those_of_robust_gd(task, law):
    made = heavy_linear(law, task, n=3000, seed=3)
    rows = ConvexRows(made.x, made.y, made.x, made.y)
    plain = fitted(rows, task, METHOD, 1.0, None, 5)
    # The key of a seed belongs to the settings, hence to the name of the method: the same key here.
    told = TabulatedGD(**asdict(METHOD))
    other = fitted(rows, task, told, 1.0, None, b"k" * 32)
    same = fitted(rows, task, METHOD, 1.0, None, b"k" * 32)
    assert np.abs(other.coef_ - same.coef_).max() < 1e-9
    assert len(other.trajectory_) == 3
    assert other.epsilon_ == plain.epsilon_ <= 1.0


def test_the_table_is_the_expectation_at_every_size():
    found = library()
    if found is None:
        pytest.skip("no compiler")
    for u in (1e-9, 0.1, 0.1699, 0.1701, 0.9, 3.99, 4.01, 17.0, 900.0, 1e7):
        row = np.array([[u, -u, 0.0, 0.0]])
        plus, minus, *nothing = found.sums(row, np.ones(1))
        assert nothing == pytest.approx([0.0, 0.0], abs=1e-13)
        want = float(by_integral(np.array([u]))[0]) if u > 0.5 else float(smoothed(row, 1.0)[0, 0])
        assert plus == pytest.approx(want, abs=1e-11) and minus == -plus
    odd = np.array([[np.nan, np.inf, -np.inf, 0.0]])
    sums = found.sums(odd, np.ones(1))
    assert sums[0] == pytest.approx(0, abs=1e-13) and sums[1] == -sums[2] == pytest.approx(smoothed(odd, 1.0)[0, 1], abs=1e-6)


def test_without_a_compiler_robust_gd_itself_runs(monkeypatch):
    monkeypatch.setattr(truncated, "library", lambda: None)
    made = heavy_linear("laplace", "ridge", n=500, seed=3)
    rows = ConvexRows(made.x, made.y, made.x, made.y)
    told = TabulatedGD(**asdict(METHOD))
    fits = [fitted(rows, "ridge", method, 1.0, None, b"k" * 32) for method in (told, METHOD)]
    assert np.array_equal(fits[0].coef_, fits[1].coef_)
