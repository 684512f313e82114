"""Additive models of partitions are those of one table."""

import numpy as np
import pytest

from winsor.core.contract import ConfigurationError
from winsor.tables import PrivateAdditiveClassifier, PrivateAdditiveRegressor, partitions

KEY = bytes(range(32))


@pytest.fixture(scope="module")
def table():
    chance = np.random.default_rng(0)
    x = chance.uniform(0, 10, size=(3_000, 2))
    y = np.sin(x[:, 0]) * (1 + x[:, 1]) + 12 + 0.3 * chance.standard_t(3, size=3_000)
    return np.column_stack([x, np.maximum(y, 0.1)])


def cut(table, places=(1, 1_000)):
    loaders = [lambda part=part: part for part in np.split(table, list(places))]
    return partitions.Partitions.of_loaders(loaders, columns=table.shape[1])


@pytest.mark.parametrize("options", [{}, {"loss": "gamma", "interactions": 0}, {"target": "log"}])
def test_regression(table, options):
    options = {"epsilon": 4.0, "random_state": KEY} | options
    whole = PrivateAdditiveRegressor(**options).fit(table[:, :2], table[:, 2])
    found = partitions.fit_additive(PrivateAdditiveRegressor(**options), cut(table))
    assert np.allclose(found.predict(table[:99, :2]), whole.predict(table[:99, :2]), rtol=1e-9)
    assert found.guarantee_.epsilon == whole.guarantee_.epsilon
    assert found.interactions_ == whole.interactions_
    assert len(found.terms_) == len(whole.terms_)


@pytest.mark.parametrize("edges", [[12], [11, 14]])
def test_classification(table, edges):
    labels = np.searchsorted(edges, table[:, 2]) + 5.0
    options = {"epsilon": 4.0, "interactions": 1, "random_state": KEY}
    whole = PrivateAdditiveClassifier(**options).fit(table[:, :2], labels)
    rows = np.column_stack([labels, table[:, :2]])
    model = PrivateAdditiveClassifier(**options)
    found = partitions.fit_additive(model, cut(rows), target=0, classes=np.unique(labels))
    chances = [each.predict_proba(table[:99, :2]) for each in (found, whole)]
    assert np.allclose(*chances, rtol=1e-9)
    assert found.predict(table[:9, :2]).tolist() == whole.predict(table[:9, :2]).tolist()
    assert "the classes are public: they were given" in found.guarantee_.conditions


def test_what_is_not_known_before_is_refused(table):
    with pytest.raises(ConfigurationError, match="classes must list at least two"):
        partitions.fit_additive(PrivateAdditiveClassifier(), cut(table))
    with pytest.raises(ConfigurationError, match="classes must be None"):
        partitions.fit_additive(PrivateAdditiveRegressor(), cut(table), classes=[0, 1])
    with pytest.raises(ConfigurationError, match="target must be one of 3"):
        partitions.fit_additive(PrivateAdditiveRegressor(), cut(table), target=-4)
