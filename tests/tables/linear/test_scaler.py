"""The private scaler: what it learns, what it spends, one record's influence."""

from __future__ import annotations

import numpy as np
import pytest

from winsor.core.contract import ConfigurationError
from winsor.core.prepaid import Receipt
from winsor.tables import PrivateScaler


def test_it_learns_means_and_deviations():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((50_000, 3)) * [1.0, 5.0, 0.7] + [0.0, 40.0, -3.0]
    scaler = PrivateScaler(low=[-5, 0, -5], high=[5, 80, 5], epsilon=1.0, random_state=0).fit(x)
    assert np.allclose(scaler.mean_, [0.0, 40.0, -3.0], atol=[0.05, 0.4, 0.05])
    assert np.allclose(scaler.scale_, [1.0, 5.0, 0.7], rtol=0.1)
    assert 0.99 < scaler.epsilon_ <= 1.0
    assert len(scaler.ledger_) == 1
    assert np.abs(scaler.transform(x).mean(0)).max() < 0.2


def test_it_learns_ranges_in_any_unit():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20_000, 2)) * [1e-3, 5e5] + [2.0, -1e6]
    scaler = PrivateScaler(low=None, high=None, epsilon=1.0, random_state=0).fit(x)
    assert np.abs(scaler.transform(x).mean(axis=0)).max() < 0.5
    assert np.allclose(scaler.transform(x)[:, 1].std(), 1.0, rtol=0.2)
    assert 0.99 < scaler.epsilon_ <= 1.0
    assert len(scaler.ledger_) == 4


@pytest.mark.parametrize("row", [0.0, 1e9, -1e9])
def test_one_record_moves_the_moments_by_no_more_than_its_sensitivity(monkeypatch, row):
    seen = []

    def release(self, value):
        seen.append((self.std, value.copy()))
        self._left -= 1
        return value

    monkeypatch.setattr(Receipt, "release", release)
    x = np.random.default_rng(0).standard_normal((20, 4))
    PrivateScaler(random_state=0).fit(x)
    PrivateScaler(random_state=0).fit(np.vstack([x, np.full((1, 4), row)]))
    (std, one), (_, two) = seen
    assert np.linalg.norm(one - two) <= np.sqrt(8)
    assert std / np.sqrt(8) > 1  # at epsilon 0.1 the noise exceeds the sensitivity


def test_a_nearly_constant_column_is_not_blown_up():
    scaler = PrivateScaler(random_state=0, epsilon=5.0).fit(np.full((5000, 2), 0.3))
    assert (scaler.scale_ >= 0.02).all()


@pytest.mark.parametrize(
    ("low", "high"), [(1.0, 1.0), (2.0, 1.0), (0.0, np.inf), ([0, 0, 0], 1.0), ("a", 1.0)]
)
def test_odd_ranges_are_refused(low, high):
    with pytest.raises(ConfigurationError, match="low"):
        PrivateScaler(low=low, high=high).fit(np.ones((5, 2)))


@pytest.mark.parametrize("options", [{"epsilon": 0.0}, {"delta": 0.9}, {"relation": "x"}])
def test_odd_budgets_are_refused(options):
    with pytest.raises(ConfigurationError):
        PrivateScaler(**options).fit(np.ones((5, 2)))
