"""Everything private inside a composite counts, wherever it hides."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.model_selection import GridSearchCV
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import Pipeline, make_pipeline

from winsor.core.contract import ConfigurationError
from winsor.planning.total import SEARCHED
from winsor.tables import PrivacyBudget, PrivateRidge, PrivateScaler, total_guarantee


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2))
    return x, x @ [1.0, 2.0]


def test_a_scaler_deep_inside_a_pipeline_counts(table):
    scaler, model = PrivateScaler(epsilon=0.7, random_state=0), PrivateRidge(random_state=0)
    columns = ColumnTransformer([("scaled", make_pipeline(scaler), [0])], remainder="passthrough")
    pipeline = make_pipeline(columns, model).fit(*table)
    total = total_guarantee(pipeline)
    inner = pipeline[0].named_transformers_["scaled"][0]
    assert total == total_guarantee(inner, pipeline[-1])
    assert total.epsilon > pipeline[-1].epsilon_
    assert total.steps == len(inner.ledger_) + len(pipeline[-1].ledger_)


def test_every_output_counts(table):
    x, y = table
    many = MultiOutputRegressor(PrivateRidge(random_state=0)).fit(x, np.c_[y, -y])
    assert total_guarantee(many).steps == sum(len(each.ledger_) for each in many.estimators_)


def test_a_search_counts_the_scaler_of_each_fold(table):
    budget = PrivacyBudget()
    pipeline = make_pipeline(
        PrivateScaler(random_state=0, budget=budget), PrivateRidge(random_state=0, budget=budget)
    )
    grid = {"privateridge__alpha": [0.1, 1.0]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(*table)
    # Five fits of the model; the scaler's are the same for both settings: two folds and the last.
    assert len(budget) == 5 + 3
    assert total_guarantee(search).steps == sum(len(ledger) for ledger, _ in budget.fits)


def test_two_budgets_of_one_search_are_added_up(table):
    one, two = PrivacyBudget(), PrivacyBudget()
    pipeline = make_pipeline(
        PrivateScaler(random_state=0, budget=one), PrivateRidge(random_state=0, budget=two)
    )
    search = GridSearchCV(pipeline, {"privateridge__alpha": [0.1, 1.0]}, cv=2).fit(*table)
    assert total_guarantee(search).steps == total_guarantee(one, two).steps


def test_a_step_without_a_budget_is_refused(table):
    pipeline = make_pipeline(
        PrivateScaler(random_state=0), PrivateRidge(random_state=0, budget=PrivacyBudget())
    )
    search = GridSearchCV(pipeline, {"privateridge__alpha": [0.1]}, cv=2)
    with pytest.warns(UserWarning, match="PrivateScaler is fitted by a search"):
        search.fit(*table)
    with pytest.raises(ConfigurationError, match="PrivateScaler in a GridSearchCV without"):
        total_guarantee(search)


def test_an_estimator_in_the_grid_needs_a_budget_too(table):
    counted = PrivateRidge(random_state=0, budget=PrivacyBudget())
    grid = {"model": [counted, PrivateRidge(random_state=1)]}
    search = GridSearchCV(Pipeline([("model", counted)]), grid, cv=2)
    with pytest.warns(UserWarning, match="search"):
        search.fit(*table)
    with pytest.raises(ConfigurationError, match="without"):
        total_guarantee(search)


def test_the_scores_of_a_search_are_named_as_uncovered(table):
    model = PrivateRidge(random_state=0, budget=PrivacyBudget())
    search = GridSearchCV(model, {"alpha": [0.1, 1.0]}, cv=2).fit(*table)
    assert SEARCHED in total_guarantee(search).conditions
    assert SEARCHED in total_guarantee(make_pipeline(search)).conditions
    assert SEARCHED not in total_guarantee(search.best_estimator_).conditions
