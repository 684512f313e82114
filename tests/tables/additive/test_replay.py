"""Whole fits, twice, on neighbouring tables: every release within the bound that was paid for."""

from __future__ import annotations

import numpy as np
import pytest

from winsor.audit import replay
from winsor.tables.additive import PrivateAdditiveClassifier, PrivateAdditiveRegressor, plan
from winsor.tables.linear import PrivateGammaRegressor, PrivatePoissonRegressor, glm

N = 40


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(plan, "FIRST_STEPS", 2)
    monkeypatch.setattr(plan, "LAST_STEPS", 3)
    monkeypatch.setattr(glm, "STEPS", {"rough": 2, "newton": 3})
    monkeypatch.setattr(glm, "KEPT", 2)
    glm.noise_of_mean.cache_clear()
    yield
    glm.noise_of_mean.cache_clear()


def table():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(N, 3))
    return x, np.exp(x[:, 0] + 0.2 * rng.standard_normal(N))


BUDGET = {"epsilon": 50.0, "delta": 1e-3}  # little noise: knots and pairs are found in few rows


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize("loss", ["squared", "huber", "poisson", "gamma"])
def test_additive_regressors_keep_their_claims(loss, relation):
    def train(data):
        model = PrivateAdditiveRegressor(loss=loss, relation=relation, **BUDGET)
        return model.fit(data[0], np.abs(data[1]))

    report = replay(train, table())
    report.assert_passed()
    assert report.releases >= 9 and report.largest_share > 0.2


def test_recognised_indicators_keep_their_claims():
    """A column of zeros and ones takes no part in later histograms, whatever a row holds there."""
    x, y = table()
    x[:, 1] = x[:, 1] > 0

    def train(data):
        return PrivateAdditiveRegressor(**BUDGET).fit(*data)

    assert train((x, y)).shape(1).knots[0].tolist() == [0.0, 1.0]
    report = replay(train, (x, y))
    report.assert_passed()
    assert report.largest_share > 0.2


def test_additive_classifiers_keep_their_claims():
    x, y = table()

    def train(data):
        return PrivateAdditiveClassifier(interactions=1, **BUDGET).fit(*data)

    report = replay(train, (x, (y > 1).astype(np.int64)))
    report.assert_passed()
    assert report.largest_share > 0.2


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize("kind", [PrivatePoissonRegressor, PrivateGammaRegressor])
def test_generalised_linear_models_keep_their_claims(kind, relation):
    def train(data):
        return kind(relation=relation, **BUDGET).fit(data[0], np.abs(data[1]))

    report = replay(train, table())
    report.assert_passed()
    assert report.largest_share > 0.2
