"""Persons in linear models: one row of each, drawn by coins of its own."""

import numpy as np
import pytest
from scipy import sparse

from winsor.core.contract import ConfigurationError
from winsor.tables import FlatDescent, PrivateLogisticRegression, PrivateRidge
from winsor.tables.units import one_row_each

DRAW = np.random.default_rng(0)
IDS = np.repeat(np.arange(300), np.r_[50, 1 + np.arange(299) % 5])
X = DRAW.normal(size=(len(IDS), 3))
Y = X @ [1.0, -1.0, 0.5] + DRAW.normal(size=len(IDS))
KEY = bytes(range(32))


def test_one_row_of_each_person_all_equally_likely():
    seen = np.zeros(len(IDS))
    for seed in range(400):
        kept = one_row_each(len(IDS), IDS, seed.to_bytes(32, "little"))
        assert len(kept) == 300
        assert np.array_equal(np.sort(IDS[kept]), np.arange(300))
        seen[kept] += 1
    first = seen[IDS == 0]
    assert first.sum() == 400
    assert first.max() < 30  # 8 on average


@pytest.mark.parametrize("table", [np.asarray, sparse.csr_array])
def test_a_fit_is_that_of_the_chosen_rows(table):
    model = PrivateRidge(epsilon=2.0, method=FlatDescent(), random_state=KEY)
    found = model.fit(table(X), Y, unit=IDS)
    assert found.ledger_.config["n"] == 300
    conditions = " ".join(found.guarantee_.conditions)
    assert "one unit with all its rows" in conditions
    assert "n = 300 is public" in conditions
    assert found.epsilon_ <= 2.0


def test_rows_that_were_not_chosen_do_not_matter():
    """The noise of a given key is the same, so equal results show equal inputs."""
    from winsor.core.randomness import key_for

    kept = one_row_each(len(IDS), IDS, key_for(KEY, 0, "rows of units"))
    other = np.where(np.isin(np.arange(len(IDS)), kept)[:, None], X, 1e6)
    fits = [
        PrivateRidge(epsilon=2.0, method=FlatDescent(), random_state=KEY).fit(x, Y, unit=IDS).coef_
        for x in (X, other)
    ]
    assert np.array_equal(*fits)


def test_classes_and_names():
    names = np.array([f"patient {i}" for i in IDS])
    model = PrivateLogisticRegression(epsilon=2.0, method=FlatDescent(), random_state=1)
    model.fit(X, (Y > 0).astype(int), unit=names)
    assert model.ledger_.config["n"] == 300
    assert model.score(X, (Y > 0).astype(int)) > 0.6


def test_a_wrong_number_of_identifiers_is_refused():
    with pytest.raises(ConfigurationError, match="one identifier for each"):
        PrivateRidge(epsilon=1.0).fit(X, Y, unit=IDS[:-1])
