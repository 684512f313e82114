"""Honest scikit-learn: searches, pipelines, reused rows, frames."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler

from winsor.contract import ConfigurationError, PrivacyLeakWarning, ProtocolError
from winsor.linear import (
    PrivacyBudget,
    PrivateLogisticRegression,
    PrivateRidge,
    PrivateScaler,
    total_guarantee,
)


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
    assert total == budget.guarantee() == total_guarantee(budget)
    assert total.steps == sum(len(ledger) for ledger, _ in budget.fits)


def test_cross_validation_counts_too(table):
    budget = PrivacyBudget()
    cross_val_score(PrivateRidge(random_state=0, budget=budget), *table, cv=3)
    assert len(budget) == 3


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


def test_frames_sparse_tables_and_pages(table):
    x, y = table
    frame = pd.DataFrame(x, columns=["age", "income"])
    model = PrivateRidge(random_state=0).fit(frame, pd.Series(y))
    assert model.feature_names_in_.tolist() == ["age", "income"]
    assert np.allclose(model.predict(frame), PrivateRidge(random_state=0).fit(x, y).predict(x))
    assert "PrivateRidge" in model._repr_html_()
    labels = (y > 0).astype(int)
    classifier = PrivateLogisticRegression(random_state=0).fit(sparse.csr_array(x), labels)
    assert classifier.score(sparse.csr_array(x), labels) > 0.6
    assert np.allclose(
        classifier.decision_function(sparse.csr_array(x)), classifier.decision_function(x)
    )
    assert np.allclose(pickle.loads(pickle.dumps(model)).predict(frame), model.predict(frame))


def test_metadata_routing_passes_by(table):
    with sklearn.config_context(enable_metadata_routing=True):
        pipeline = make_pipeline(PrivateScaler(random_state=0), PrivateRidge(random_state=0))
        assert np.isfinite(pipeline.fit(*table).predict(table[0])).all()
