from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from winsor.core.contract import ConfigurationError
from winsor.tails import points as pts
from winsor.tails import weibull


@given(n=st.integers(60, 5000), fraction=st.floats(0.05, 0.75), zeros=st.integers(0, 50))
def test_points_account_for_every_norm(n, fraction, zeros):
    x = np.concatenate([np.random.default_rng(n).exponential(size=n), np.zeros(zeros)])
    z, found_zeros = pts.log_norms(x)
    tail = pts.tail_points(z, zeros, fraction)
    assert found_zeros == zeros
    assert tail.size == n + zeros
    assert (np.diff(tail.z) <= 0).all()
    above = z[z > tail.threshold]
    assert tail.weight.sum() == above.size
    assert (tail.weight * tail.z).sum() == pytest.approx(above.sum())


def test_merging_moves_the_fit_by_little(monkeypatch):
    """50,000 norms: merged points against all of them, in units of the standard error."""
    z, _ = pts.log_norms(np.random.default_rng(1).weibull(0.8, 50_000))
    merged = pts.tail_points(z, 0, 0.5)
    monkeypatch.setattr(pts, "EXACT", 10**9)
    exact = pts.tail_points(z, 0, 0.5)
    assert merged.z.size < 1000 < exact.z.size == 25_000
    coarse, fine = weibull.fit_weibull(merged), weibull.fit_weibull(exact)
    errors = np.sqrt(np.diag(fine.covariance))
    shift = np.array([coarse.log_scale - fine.log_scale, coarse.log_theta - fine.log_theta])
    assert (np.abs(shift) < 0.02 * errors).all()


@pytest.mark.parametrize(
    ("norms", "message"),
    [
        (np.array([1.0, np.nan] * 100), "finite"),
        (np.array([1.0, -2.0] * 100), "not negative"),
        (np.arange(1.0, 40.0), "at least 50"),
        (np.ones(100), "vary"),
    ],
)
def test_samples_without_a_tail_are_refused(norms, message):
    with pytest.raises(ConfigurationError, match=message):
        pts.log_norms(norms)
