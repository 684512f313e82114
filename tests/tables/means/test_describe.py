"""Mean, variance, quantiles and groups under one budget."""

from __future__ import annotations

import numpy as np
import pytest

from winsor.core.contract import ConfigurationError
from winsor.tables import describe


def test_everything_comes_from_one_budget():
    rng = np.random.default_rng(0)
    x = rng.gamma(2.0, 500.0, size=30_000)
    by = np.where(rng.random(30_000) < 0.3, "young", "old")
    found = describe(x, by=by, epsilon=1.0, random_state=0)
    assert 0.99 < found.guarantee.epsilon <= 1.0
    assert found.mean == pytest.approx(x.mean(), rel=0.03)
    assert found.low < x.mean() < found.high
    assert found.variance == pytest.approx(x.var(), rel=0.15)
    for level, value in found.quantiles.items():
        assert (x <= value).mean() == pytest.approx(level, abs=0.03)
    assert found.groups["young"].estimate == pytest.approx(x[by == "young"].mean(), rel=0.06)


def test_columns_and_no_groups():
    x = np.random.default_rng(0).normal([0.0, 50.0], [1.0, 5.0], size=(20_000, 2))
    found = describe(x, epsilon=2.0, random_state=0)
    assert found.groups is None
    assert np.allclose(np.sqrt(found.variance), [1.0, 5.0], rtol=0.2)
    assert found.quantiles[0.5].shape == (2,)


@pytest.mark.parametrize("options", [{"quantiles": (0.0,)}, {"level": 2.0}, {"epsilon": -1.0}])
def test_odd_arguments_are_refused(options):
    with pytest.raises(ConfigurationError):
        describe(np.arange(10.0), **{"epsilon": 1.0} | options)
