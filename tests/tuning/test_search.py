"""Randomised search for estimators: the account, the split, public and private scores."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse, stats
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from winsor.core.accounting import account
from winsor.core.contract import CalibrationError, ConfigurationError, UnsoundRelease
from winsor.tables import PrivateLogisticRegression, PrivateRidge
from winsor.tuning.search import PrivateRandomizedSearchCV, _split
from winsor.tuning.selection import SelectionDpEvent

GRID = {"alpha": stats.loguniform(1e-4, 0.1), "feature_bound": [2.0, 3.0]}


def classes(n=2000, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 3)).clip(-1.7, 1.7)
    return X, (X[:, 0] + 0.3 * rng.standard_normal(n) > 0).astype(int)


def test_a_search_stays_within_its_budget():
    X, y = classes()
    search = PrivateRandomizedSearchCV(
        PrivateLogisticRegression(), GRID, epsilon=2.0, delta=1e-5, n_iter=3, random_state=0
    ).fit(X, y)
    assert 1.9 <= search.epsilon_ <= 2.0
    ((event, count),) = search.ledger_.history()
    assert isinstance(event, SelectionDpEvent) and count == 1
    assert account([(event, 1)], 1e-5).epsilon == pytest.approx(search.epsilon_, rel=1e-3)
    assert search.score(*classes(seed=1)) > 0.8
    assert set(search.best_params_) == set(GRID)
    assert search.best_estimator_.get_params()["alpha"] == search.best_params_["alpha"]
    assert search.predict(X[:5]).shape == (5,) and search.predict_proba(X[:5]).shape == (5, 2)
    assert list(search.classes_) == [0, 1]
    # The winner does not carry the key of its noise, nor the epsilon of a single trial.
    assert search.best_estimator_.random_state is None
    assert search.best_estimator_.epsilon_ == search.epsilon_


def test_public_rows_score_for_free_and_all_private_rows_train():
    X, y = classes()
    private = PrivateRandomizedSearchCV(
        PrivateLogisticRegression(method="flat"),
        GRID,
        epsilon=2.0,
        delta=1e-5,
        n_iter=3,
        random_state=0,
    )
    private.fit(X, y, *classes(500, seed=2))
    ((event, _),) = private.ledger_.history()
    assert len(event.trial) == 1
    assert any("public rows" in condition for condition in private.guarantee_.conditions)
    assert 0.7 < private.best_score_ <= 1.0


def test_sparse_rows():
    X, y = classes()
    search = PrivateRandomizedSearchCV(
        PrivateLogisticRegression(), GRID, epsilon=2.0, delta=1e-5, n_iter=2, random_state=0
    ).fit(sparse.csr_matrix(X), y)
    assert search.epsilon_ <= 2.0 and search.score(X, y) > 0.7


def test_regression():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3000, 2)).clip(-1.5, 1.5)
    y = (X @ [0.5, -0.2] + 0.1 * rng.standard_normal(3000)).clip(-1, 1)
    search = PrivateRandomizedSearchCV(
        PrivateRidge(feature_bound=3.0), {"alpha": [1e-4, 1e-2]}, epsilon=3.0, delta=1e-5,
        n_iter=2, target_range=(-1.0, 1.0), score_std=0.005, random_state=1,
    )  # fmt: skip
    with pytest.raises(ConfigurationError, match="target_range"):
        clone(search).set_params(target_range=None).fit(X, y)
    search.fit(X, y)
    assert 2.85 <= search.epsilon_ <= 3.0 and 0.5 < search.best_score_ <= 1.0


def test_settings_that_change_what_a_fit_spends_are_refused():
    X, y = classes(400)
    search = PrivateRandomizedSearchCV(
        PrivateLogisticRegression(), {"noise_multiplier": [1.0]}, epsilon=2.0, delta=1e-4,
        n_iter=2, score_std=0.1, random_state=0,
    )  # fmt: skip
    with pytest.raises(UnsoundRelease, match="at most what was declared"):
        search.fit(X, y)


def test_a_score_that_uses_up_the_budget_is_refused():
    X, y = classes(400)
    search = PrivateRandomizedSearchCV(
        PrivateLogisticRegression(), GRID, epsilon=0.5, delta=1e-4, n_iter=3, random_state=0
    )
    with pytest.raises(CalibrationError, match="score alone"):
        search.fit(X, y)
    with pytest.raises(ConfigurationError, match="holdout must leave"):
        search.set_params(holdout=0.0).fit(X, y)


def test_the_split_does_not_look_at_the_rows():
    assert np.array_equal(_split(50, 0.2, b"k" * 32), _split(50, 0.2, b"k" * 32))
    assert np.count_nonzero(_split(50, 0.2, b"k" * 32)) == 10
    assert not _split(50, 0.0, b"k" * 32).any()


def test_it_is_an_estimator_like_its_own():
    search = PrivateRandomizedSearchCV(PrivateLogisticRegression(), GRID)
    assert is_classifier(search) and not is_regressor(search)
    assert is_regressor(PrivateRandomizedSearchCV(PrivateRidge(), GRID))
    assert clone(search).get_params()["n_iter"] == 10
    assert hasattr(search, "predict_proba")
    assert not hasattr(PrivateRandomizedSearchCV(PrivateRidge(), GRID), "predict_proba")
    X, y = classes()
    search.set_params(n_iter=2, epsilon=3.0, delta=1e-5, random_state=0)
    piped = make_pipeline(FunctionTransformer(), search).fit(X, y)
    assert piped.predict(X[:3]).shape == (3,)
