"""The private binner: scikit-learn's conventions, edges, cells."""

from __future__ import annotations

import numpy as np
import pytest

from winsor.core.contract import ConfigurationError
from winsor.tables import PrivateBinner, PrivateRidge, total_guarantee


def test_cells_are_numbered_from_below():
    x = np.random.default_rng(0).normal(size=(5000, 2))
    binner = PrivateBinner(bins=8, epsilon=2.0, random_state=0).fit(x)
    codes = binner.transform(np.array([[-1e9, 1e9], [0.0, 0.0]]))
    assert codes[0].tolist() == [0, len(binner.edges_[1])]
    assert 0 < codes[1, 0] < len(binner.edges_[0])
    assert 1.99 < binner.epsilon_ <= 2.0


def test_it_adds_up_with_a_model():
    x = np.random.default_rng(0).normal(size=(2000, 2))
    binner = PrivateBinner(epsilon=0.5, random_state=0).fit(x)
    model = PrivateRidge(random_state=0).fit(x, x[:, 0])
    assert 1.0 < total_guarantee(binner, model).epsilon < 1.5


def test_odd_numbers_of_bins_are_refused():
    with pytest.raises(ConfigurationError, match="bins"):
        PrivateBinner(bins=1).fit(np.ones((10, 2)))
