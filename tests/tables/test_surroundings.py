"""Honest scikit-learn: searches, pipelines, reused rows, frames."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, OneHotEncoder, StandardScaler

from winsor.core.contract import ConfigurationError, PrivacyLeakWarning, ProtocolError
from winsor.tables import (
    PrivacyBudget,
    PrivateAdditiveClassifier,
    PrivateAdditiveRegressor,
    PrivateBinner,
    PrivateGammaRegressor,
    PrivateHuberRegressor,
    PrivateLinearRegression,
    PrivateLinearSVC,
    PrivateLogisticRegression,
    PrivateMedianRegressor,
    PrivatePoissonRegressor,
    PrivateRidge,
    PrivateScaler,
    total_guarantee,
)

ESTIMATORS = [
    PrivateAdditiveClassifier,
    PrivateAdditiveRegressor,
    PrivateGammaRegressor,
    PrivateHuberRegressor,
    PrivateLinearRegression,
    PrivateLinearSVC,
    PrivateLogisticRegression,
    PrivateMedianRegressor,
    PrivatePoissonRegressor,
    PrivateRidge,
    PrivateScaler,
    PrivateBinner,
]


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2))
    return x, x @ [1.0, 2.0]


def test_a_search_without_a_budget_warns_and_cannot_be_added_up(table):
    search = GridSearchCV(PrivateRidge(random_state=0), {"alpha": [0.1, 1.0]}, cv=2)
    with pytest.warns(PrivacyLeakWarning, match="search"):
        search.fit(*table)
    with pytest.raises(ConfigurationError, match="budget"):
        total_guarantee(search)


def test_a_search_with_a_budget_counts_every_fit(table):
    budget = PrivacyBudget()
    model = PrivateRidge(epsilon=1.0, random_state=0, budget=budget)
    search = GridSearchCV(model, {"alpha": [0.1, 1.0]}, cv=2).fit(*table)
    assert len(budget) == 5  # two settings, two folds, and the last fit
    total = total_guarantee(search)
    assert total.epsilon > 2 * search.best_estimator_.epsilon_
    assert budget.guarantee() == total_guarantee(budget)
    assert total.epsilon == budget.guarantee().epsilon
    assert total.steps == sum(len(ledger) for ledger, _ in budget.fits)


def test_cross_validation_counts_too(table):
    budget = PrivacyBudget()
    cross_val_score(PrivateRidge(random_state=0, budget=budget), *table, cv=3)
    assert len(budget) == 3


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_every_estimator_counts_its_folds_or_warns(kind):
    """Also transformers, which a search fits again in every fold."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 2)), rng.integers(0, 2, size=300)
    budget = PrivacyBudget()
    options = {"epsilon": 1.0, "random_state": 0}
    folds = {"cv": 2, "scoring": lambda *_: 0.0}
    cross_val_score(kind(budget=budget, **options), x, y, **folds)
    assert len(budget) == 2
    # Two folds are no repetition; and a budget that is not empty yields the same noise.
    seeded = kind(budget=budget, **options).fit(x, y)
    again = kind(**options).fit(x, y)
    assert seeded.ledger_.runs == again.ledger_.runs
    with pytest.warns(PrivacyLeakWarning, match="search or a cross-validation"):
        cross_val_score(kind(**options), x, y, **folds)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_every_estimator_notices_rows_that_it_has_seen(kind):
    rng = np.random.default_rng(sum(map(ord, kind.__name__)))
    x, y = rng.normal(size=(300, 2)), rng.integers(0, 2, size=300)
    kind(epsilon=1.0).fit(x, y)
    with pytest.warns(PrivacyLeakWarning, match="earlier fit"):
        kind(epsilon=1.0).fit(x, y)


def test_a_key_of_ones_own_is_for_one_fit(table):
    """Its noise does not depend on the rows: two folds under one key differ without noise."""
    budget = PrivacyBudget()
    model = PrivateRidge(random_state=bytes(32), budget=budget).fit(*table)
    with pytest.raises(ProtocolError, match="one fit"):
        clone(model).fit(table[0][100:], table[1][100:])
    assert len(budget) == 1


def test_clones_share_the_budget_and_a_repeated_fit_counts_once(table):
    model = PrivateRidge(random_state=0, budget=PrivacyBudget())
    copy = clone(model)
    assert copy.budget is model.budget
    model.fit(*table)
    copy.fit(*table)  # the same rows, the same seed: the same release
    assert len(model.budget) == 1
    copy.set_params(alpha=3.0).fit(*table)
    assert len(model.budget) == 2


def test_another_process_may_not_lose_its_spending(table):
    budget = PrivacyBudget()
    budget._process = -1
    with pytest.raises(ProtocolError, match="n_jobs"):
        PrivateRidge(random_state=0, budget=budget).fit(*table)


def test_an_empty_budget_certifies_nothing():
    with pytest.raises(ConfigurationError, match="fits"):
        PrivacyBudget().guarantee()


def test_a_scaler_that_is_not_private_warns(table):
    model = PrivateRidge(random_state=0)
    with pytest.warns(PrivacyLeakWarning, match="StandardScaler"):
        make_pipeline(StandardScaler(), model).fit(*table)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_pipeline(Normalizer(), PrivateScaler(random_state=0), model).fit(*table)


def test_a_pipeline_in_a_search_without_a_budget_warns(table):
    pipeline = make_pipeline(PrivateRidge(random_state=0))
    search = GridSearchCV(pipeline, {"privateridge__alpha": [1.0]}, cv=2)
    with pytest.warns(PrivacyLeakWarning, match="search"):
        search.fit(*table)


def test_parts_of_a_column_transformer_are_looked_at(table):
    x = np.c_[table[0], np.arange(400) % 3]

    def fit(*parts):
        columns = ColumnTransformer(list(parts), remainder="passthrough")
        make_pipeline(columns, PrivateRidge(random_state=0)).fit(x, table[1])

    declared = ("kind", OneHotEncoder(categories=[[0, 1, 2]]), [2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(("scaled", PrivateScaler(random_state=0), [0, 1]), declared)
    with pytest.warns(PrivacyLeakWarning, match="columntransformer: kind"):
        fit(("kind", OneHotEncoder(), [2]))
    with pytest.warns(PrivacyLeakWarning, match="columntransformer: scaled: standardscaler"):
        fit(("scaled", make_pipeline(StandardScaler()), [0, 1]), declared)


def test_rows_of_an_earlier_fit_are_noticed():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(300, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PrivateRidge().fit(x, x[:, 0])
        PrivateRidge(random_state=0).fit(x, x[:, 0])  # an experiment: protects nobody anyway
        PrivateRidge(budget=PrivacyBudget()).fit(x, x[:, 0])
        PrivateRidge().fit(rng.normal(size=(300, 3)), x[:, 0])
    with pytest.warns(PrivacyLeakWarning, match="earlier fit"):
        PrivateRidge().fit(x[100:], x[100:, 0])
