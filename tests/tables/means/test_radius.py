"""The private quantile search."""

from __future__ import annotations

import numpy as np
import pytest

from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor, Receipt
from winsor.core.randomness import new_key
from winsor.tables import PrivateRadius


def door(relation=Neighbouring.ADD_OR_REMOVE_ONE) -> PrepaidDoor:
    return PrepaidDoor(Ledger({}), relation, new_key(0))


@pytest.mark.parametrize("level", [0.1, 0.5, 0.95])
def test_almost_without_noise_it_is_the_quantile(level):
    norms = np.random.default_rng(0).pareto(2.0, size=20_001)
    search = PrivateRadius(1e-4, 1e4, ratio=1.01)
    found = search.search(norms, level, door(), Gaussian(1e-3))
    assert found == pytest.approx(np.quantile(norms, level), rel=0.02)


@pytest.mark.parametrize(("norms", "answer"), [(np.zeros(100), 0.5), (np.full(100, 1e9), 8.0)])
def test_it_stays_within_the_public_bounds(norms, answer):
    assert PrivateRadius(0.5, 8.0).search(norms, 0.9, door(), Gaussian(0.01)) == answer


def test_the_number_of_releases_is_fixed():
    search = PrivateRadius(0.5, 800.0)
    for norms in (np.zeros(10), np.full(10, 1e9), np.linspace(0, 1000, 10)):
        prepaid = door()
        search.search(norms, 0.9, prepaid, Gaussian(1.0))
        assert len(prepaid.ledger) == search.steps


@pytest.mark.parametrize("level", [0.2, 0.5, 0.99])
def test_one_record_moves_a_count_by_no_more_than_the_sensitivity(monkeypatch, level):
    seen = []

    def release(self, value):
        seen.append(float(value[0]))
        self._left -= 1
        return value

    monkeypatch.setattr(Receipt, "release", release)
    norms = np.linspace(0.1, 50, 40)
    search = PrivateRadius(0.5, 800.0)
    bound = search.sensitivity(level)
    for record in (0.0, 1e9):
        for table in (norms, np.append(norms, record), np.append(norms[:-1], record)):
            search.search(table, level, door(), Gaussian(1.0))
        first, added, replaced = seen[:: search.steps]
        assert abs(added - first) <= bound.add_remove + 1e-12
        assert abs(replaced - first) <= bound.replace + 1e-12
        seen.clear()


@pytest.mark.parametrize(
    "options",
    [
        {"lower": 0.0, "upper": 1.0},
        {"lower": 2.0, "upper": 1.0},
        {"lower": 1.0, "upper": np.inf},
        {"lower": 1.0, "upper": 2.0, "level": 1.0},
        {"lower": 1.0, "upper": 2.0, "share": 0.0},
        {"lower": 1.0, "upper": 2.0, "ratio": 1.0},
    ],
)
def test_odd_settings_are_refused(options):
    with pytest.raises(ConfigurationError):
        PrivateRadius(**options)
