"""The estimators as a user meets them."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from winsor.core.accounting.spending import certify
from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.tables import (
    AveragedDescent,
    FlatDescent,
    PrivacyBudget,
    PrivateHuberRegressor,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateRidge,
    PrivateScaler,
    Simple,
    total_guarantee,
)
from winsor.tails.datasets import gaussian_design

REGRESSORS = [PrivateLinearRegression, PrivateRidge, PrivateHuberRegressor]

KEY = bytes(range(32))  # a key, unlike a seed, is not bound to the data


@pytest.fixture(scope="module")
def labelled():
    data = gaussian_design(4000, 4, task="logistic", scale=0.3, seed=0)
    return data.x, data.y.astype(int)


@pytest.fixture(scope="module")
def targets():
    data = gaussian_design(4000, 4, scale=0.2, seed=0)
    return data.x, data.y, data.coef


def test_binary_classification(labelled):
    x, y = labelled
    model = PrivateLogisticRegression(epsilon=1.0, random_state=0).fit(x, y)
    assert model.score(x, y) > 0.85
    assert model.coef_.shape == (1, 4)
    assert 0.99 < model.epsilon_ <= 1.0
    assert model.delta_ == 1e-5
    spent = certify(model.ledger_.history(), model.delta_, Neighbouring.ADD_OR_REMOVE_ONE)
    assert spent.epsilon == model.epsilon_
    assert len(model.ledger_) == model.n_iter_ == model.guarantee_.steps
    probabilities = model.predict_proba(x)
    assert np.allclose(probabilities.sum(1), 1)
    assert np.array_equal(model.classes_[probabilities.argmax(1)], model.predict(x))
    assert np.allclose(np.log(probabilities), model.predict_log_proba(x))


def test_multinomial_classification():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, size=5000)
    x = np.eye(3)[y] * 2 + rng.standard_normal((5000, 3))
    names = np.array(["amber", "blue", "cyan"])[y]
    model = PrivateLogisticRegression(epsilon=1.0, random_state=0).fit(x, names)
    assert model.coef_.shape == (3, 3)
    assert model.score(x, names) > 0.75
    assert model.predict_proba(x).shape == (5000, 3)


@pytest.mark.parametrize("kind", REGRESSORS)
def test_regression(kind, targets):
    x, y, coef = targets
    fits = [
        kind(epsilon=2.0, target_range=(-3, 3), random_state=seed).fit(x, y) for seed in range(3)
    ]
    # In one fit of ten the noise of a far cell passes for rows and stretches a range.
    assert np.median([np.abs(model.coef_ - coef).max() for model in fits]) < 0.1
    model = fits[0]
    assert model.score(x, y) > 0.85
    assert 1.98 < model.epsilon_ <= 2.0


def test_huber_resists_enormous_targets_better_than_least_squares(targets):
    x, y, coef = targets
    y = y.copy()
    y[::50] += 1000
    robust = PrivateHuberRegressor(random_state=KEY, target_range=(-3, 3)).fit(x, y)
    assert np.abs(robust.coef_ - coef).max() < 0.15
    assert abs(robust.intercept_) < 0.15
    by_hand = PrivateHuberRegressor(random_state=KEY, target_range=(-3, 3), threshold=0.75)
    assert np.array_equal(by_hand.fit(x, y).coef_, robust.coef_)  # a quarter of the half width


def test_the_ridge_penalty_shrinks(targets):
    x, y, _ = targets
    lengths = [
        np.linalg.norm(PrivateRidge(alpha=alpha, random_state=0).fit(x, y).coef_)
        for alpha in (0.0, 0.3, 3.0)
    ]
    assert lengths[0] > lengths[1] > lengths[2]


@pytest.mark.parametrize("intercept", [True, False])
def test_sparse_and_dense_agree(labelled, intercept, monkeypatch):
    monkeypatch.setattr("winsor.tables.design._DENSE_NUMBERS", 0)
    x, y = labelled
    x = np.where(np.abs(x) > 1, x, 0.0)
    for method in ("flat", FlatDescent(batch_size=200, epochs=1)):
        model = PrivateLogisticRegression(
            method=method, fit_intercept=intercept, random_state=KEY, noise_multiplier=1.0
        )
        dense = clone(model).fit(x, y)
        for convert in (sparse.csr_array, sparse.csc_array, sparse.coo_array):
            narrow = clone(model).fit(convert(x), y)
            assert np.allclose(dense.coef_, narrow.coef_)
            assert np.array_equal(dense.predict(x), narrow.predict(convert(x)))


def test_public_units_are_units(labelled, targets):
    x, y = labelled
    one = PrivateLogisticRegression(method="flat", random_state=KEY, feature_bound=4.0).fit(x, y)
    two = PrivateLogisticRegression(method="flat", random_state=KEY).fit(x / 4.0, y)
    assert np.allclose(one.coef_ * 4.0, two.coef_)
    one = PrivateLogisticRegression(random_state=KEY, feature_bound=4.0).fit(x, y)
    two = PrivateLogisticRegression(random_state=KEY, feature_bound=1.0).fit(x / 4.0, y)
    assert np.allclose(one.coef_ * 4.0, two.coef_)  # to the default, a bound is news
    x, y, _ = targets
    near = PrivateLinearRegression(random_state=KEY, target_range=(-1, 1)).fit(x, y)
    far = PrivateLinearRegression(random_state=KEY, target_range=(-100, 100)).fit(x, 100 * y)
    assert np.allclose(near.coef_ * 100, far.coef_)
    assert np.isclose(near.intercept_ * 100, far.intercept_)
    flat = PrivateLinearRegression(method="flat", random_state=KEY)  # to the default, 0 is a place
    near = clone(flat).set_params(target_range=(-1, 1)).fit(x, y)
    far = clone(flat).set_params(target_range=(900, 1100)).fit(x, 1000 + 100 * y)
    assert np.allclose(near.coef_ * 100, far.coef_)
    assert np.isclose(near.intercept_ * 100 + 1000, far.intercept_)


@pytest.mark.parametrize("method", ["averaged", "simple", "iterative", "robust_gd"])
def test_theorem_methods_are_refused_without_a_public_bound(method, labelled):
    """One row decided between 6 steps and 129, beside a clean certificate."""
    with pytest.raises(ConfigurationError, match="feature_bound must be given"):
        PrivateLogisticRegression(method=method, random_state=0).fit(*labelled)


def test_theorem_methods_do_not_warn_with_a_public_bound(labelled):
    x, y = labelled
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PrivateLogisticRegression(method="simple", feature_bound=5.0, random_state=0).fit(x, y)
        PrivateLogisticRegression(method="averaged", feature_bound=5.0, random_state=0).fit(x, y)
        PrivateLogisticRegression(method="automatic", random_state=0).fit(x, y)


def test_a_seed_reproduces_and_no_seed_does_not(labelled):
    x, y = labelled
    fits = [PrivateLogisticRegression(random_state=seed).fit(x, y).coef_ for seed in (0, 0, 1)]
    assert np.array_equal(fits[0], fits[1])
    assert not np.array_equal(fits[0], fits[2])
    budget = PrivacyBudget()
    secret = [PrivateLogisticRegression(budget=budget).fit(x, y).coef_ for _ in range(2)]
    assert not np.array_equal(*secret)
    state = np.random.RandomState(0)
    moving = [PrivateLogisticRegression(random_state=state).fit(x, y).coef_ for _ in range(2)]
    assert not np.array_equal(*moving)


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_noise_by_hand_reports_what_it_spends(labelled, relation):
    x, y = labelled
    model = PrivateLogisticRegression(
        noise_multiplier=2.0, method=FlatDescent(steps=10), relation=relation, random_state=0
    ).fit(x, y)
    assert model.guarantee_.relation == relation
    shift = 1 if relation == "add_or_remove_one" else 2
    mu = np.sqrt(10) * shift / 2.0
    from winsor.core.accounting.gaussian import epsilon

    assert model.epsilon_ == pytest.approx(epsilon(mu, 1e-5), rel=2e-5)


# ------------------------------------------------------------------- living among scikit-learn


def test_grid_search_reaches_the_options_of_a_method(labelled):
    x, y = labelled
    search = GridSearchCV(
        PrivateLogisticRegression(
            method=FlatDescent(steps=20), random_state=0, budget=PrivacyBudget()
        ),
        {"method__max_grad_norm": [0.1, 1.0], "epsilon": [0.5, 4.0]},
        cv=2,
    ).fit(x, y)
    assert search.best_score_ > 0.8
    assert search.best_estimator_.epsilon_ <= search.best_params_["epsilon"]


def test_clone_keeps_nothing_learned(labelled):
    x, y = labelled
    model = PrivateLogisticRegression(method=FlatDescent(steps=3), epsilon=2.0).fit(x, y)
    copy = clone(model)
    assert copy.get_params()["method__steps"] == 3
    assert copy.method is not model.method
    with pytest.raises(NotFittedError):
        copy.predict(x)


def test_a_pipeline_composes_the_scaler_and_the_model(labelled):
    x, y = labelled
    far = 100 + 30 * x
    pipeline = make_pipeline(
        PrivateScaler(low=0.0, high=200.0, epsilon=0.5, random_state=0),
        PrivateLogisticRegression(epsilon=1.0, random_state=0),
    ).fit(far, y)
    assert pipeline.score(far, y) > 0.85
    total = total_guarantee(pipeline)
    assert 1.0 < total.epsilon < 1.5
    assert total.steps == 1 + pipeline[-1].n_iter_
    direct = total_guarantee(pipeline[0], pipeline[-1])
    assert direct.epsilon == total.epsilon


def test_total_guarantee_refuses_what_it_cannot_add(labelled):
    x, y = labelled
    one = PrivateLogisticRegression(method=FlatDescent(steps=1), random_state=0).fit(x, y)
    two = PrivateLogisticRegression(method=FlatDescent(steps=1), relation="replace_one").fit(x, y)
    with pytest.raises(ConfigurationError, match="one neighbouring relation"):
        total_guarantee(one, two)
    with pytest.raises(ConfigurationError, match="at least one"):
        total_guarantee(PrivateScaler())


@pytest.mark.parametrize(
    "kind", [PrivateLogisticRegression, PrivateLinearRegression, PrivateScaler]
)
def test_a_saved_model_does_not_carry_its_key(kind, labelled, monkeypatch):
    """Whoever holds the key can subtract the noise: it must not travel in a pickle."""
    secret = b"the key that undoes the noise!!!"
    monkeypatch.setattr("winsor.core.randomness.new_key", lambda seed=None: secret)
    model = kind().fit(*labelled)
    assert secret not in pickle.dumps(model)
    loaded = pickle.loads(pickle.dumps(model))
    assert loaded.epsilon_ == model.epsilon_


# --------------------------------------------------------------------------------- partial_fit


def test_partial_fit_goes_on_and_pays_again(labelled):
    x, y = labelled
    model = PrivateLogisticRegression(epsilon=0.5, random_state=0)
    model.partial_fit(x[:2000], y[:2000], classes=[0, 1])
    first, once = model.coef_.copy(), model.epsilon_
    steps = len(model.ledger_)
    model.partial_fit(x[2000:], y[2000:])
    assert len(model.ledger_) > steps
    assert 0.5 < model.epsilon_ < 1.0
    assert once <= 0.5
    assert not np.array_equal(first, model.coef_)
    assert model.score(x, y) > 0.8
    model.fit(x, y)  # a new fit starts anew
    assert model.epsilon_ <= 0.5


def test_partial_fit_draws_fresh_batches_and_noise(labelled):
    x, y = labelled
    still = FlatDescent(batch_size=100, steps=5, learning_rate=1e-12)
    model = PrivateLogisticRegression(method=still, random_state=0)
    moves, before = [], np.zeros((1, 4))
    for _ in range(2):
        model.partial_fit(x, y, classes=[0, 1])
        moves.append(model.coef_ - before)
        before = model.coef_.copy()
    assert not np.allclose(moves[0], moves[1], rtol=0.01, atol=0)


@pytest.mark.parametrize("kind", REGRESSORS)
def test_partial_fit_of_regressors(kind, targets):
    x, y, coef = targets
    model = kind(epsilon=2.0, random_state=0)
    for part in np.array_split(np.arange(4000), 2):
        model.partial_fit(x[part], y[part])
    assert np.abs(model.coef_ - coef).max() < 0.2
    assert 2.0 < model.epsilon_ < 4.0


def test_partial_fit_refuses_what_it_cannot_continue(labelled):
    x, y = labelled
    with pytest.raises(ConfigurationError, match="classes must be passed"):
        PrivateLogisticRegression().partial_fit(x, y)
    with pytest.raises(ConfigurationError, match="for partial_fit"):
        PrivateLogisticRegression(method=Simple(clip=1.0)).partial_fit(x, y, classes=[0, 1])
    with pytest.raises(ConfigurationError, match="for partial_fit"):
        PrivateRidge(method="simple").partial_fit(x, y)


# ----------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be a positive"),
        ({"epsilon": -1.0}, "epsilon must be a positive"),
        ({"epsilon": float("nan")}, "epsilon must be a positive"),
        ({"delta": 0.5}, "below 1/n"),
        ({"delta": 0.0}, "strictly between 0 and 1"),
        ({"alpha": -1.0}, "alpha must be"),
        ({"feature_bound": 0.0}, "feature_bound must be"),
        ({"noise_multiplier": 0.0}, "noise_multiplier must be"),
        ({"relation": "row"}, "relation must be one of"),
        ({"method": "sgd"}, "method must be one of"),
        ({"method": 7}, "method must be one of"),
        ({"method": AveragedDescent(radius=-1.0)}, "radius must be"),
        ({"method": Simple(clip=-1.0)}, "clip must be"),
    ],
)
def test_bad_arguments_are_refused(options, message, labelled):
    x, y = labelled
    with pytest.raises(ConfigurationError, match=message):
        PrivateLogisticRegression(**options).fit(x, y)


def test_labels_beyond_public_classes_count_as_the_first(labelled):
    """How many there were stood in the message of an error."""
    x, y = labelled
    odd, first = (np.where(y == 1, label, 0) for label in (7, 0))
    options = {"random_state": bytes(32), "method": "flat"}
    fits = [
        PrivateLogisticRegression(**options).fit(x, labels, classes=[0, 1])
        for labels in (odd, first)
    ]
    assert np.array_equal(fits[0].coef_, fits[1].coef_) and fits[0].classes_.tolist() == [0, 1]
    assert any("they were given" in each for each in fits[0].guarantee_.conditions)


@pytest.mark.parametrize(("value", "counts_as"), [(np.nan, 0.0), (np.inf, 1e100)])
def test_cells_that_are_not_finite_count_as_public_numbers(value, counts_as, labelled):
    """Refusing them would tell of the row that holds one."""
    fits = []
    for cell in (value, counts_as):
        x, y = labelled[0].copy(), labelled[1].astype(float)
        x[3, 1] = y[5] = cell
        fits.append(PrivateLinearRegression(random_state=bytes(32)).fit(x, y).coef_)
    assert np.array_equal(*fits)


def test_one_class_is_refused(labelled):
    with pytest.raises(ConfigurationError, match="at least two classes"):
        PrivateLogisticRegression().fit(labelled[0], np.ones(4000))


def test_continuous_labels_are_refused(labelled):
    with pytest.raises(ValueError, match="Unknown label type"):
        PrivateLogisticRegression().fit(labelled[0], labelled[0][:, 0])


@pytest.mark.parametrize("dtype", [np.complex64, complex])
def test_sparse_tables_of_odd_types_are_refused(dtype):
    table = sparse.csr_array(np.eye(4, dtype=float)).astype(dtype)
    with pytest.raises(ConfigurationError, match="real numbers if sparse"):
        PrivateLogisticRegression().fit(table, [0, 1, 0, 1])


@pytest.mark.parametrize("value", [0.0, 5.0])
def test_a_constant_column_does_no_harm(value, labelled):
    """Refusing it would reveal that it is constant; it only shares the intercept's work."""
    x, y = labelled
    model = PrivateLogisticRegression(random_state=0).fit(np.c_[x, np.full(len(x), value)], y)
    assert np.isfinite(model.coef_).all()
    assert model.score(np.c_[x, np.full(len(x), value)], y) > 0.8


@pytest.mark.parametrize("limits", [(1.0, 1.0), (2.0, 1.0), (0.0, np.inf), "ab", (0.0,)])
def test_odd_target_ranges_are_refused(limits, targets):
    with pytest.raises(ConfigurationError, match="target_range"):
        PrivateLinearRegression(target_range=limits).fit(*targets[:2])


def test_odd_thresholds_are_refused(targets):
    with pytest.raises(ConfigurationError, match="threshold"):
        PrivateHuberRegressor(threshold=0.0).fit(*targets[:2])


def test_constant_columns_are_accepted_and_do_no_harm(labelled):
    """Refusing them would tell something exact about the private table."""
    X, y = labelled
    X = np.column_stack([X, np.full(len(X), 3.0), np.zeros(len(X))])
    model = PrivateLogisticRegression(epsilon=1.0, random_state=0).fit(X, y)
    assert np.isfinite(model.coef_).all()
    assert model.epsilon_ <= 1.0
