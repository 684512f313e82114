"""Everything private inside a composite counts, wherever it hides."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import (
    AdaBoostRegressor,
    BaggingClassifier,
    BaggingRegressor,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.feature_selection import RFE, SequentialFeatureSelector
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    FixedThresholdClassifier,
    GridSearchCV,
    TunedThresholdClassifierCV,
)
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import SelfTrainingClassifier

from winsor.core.contract import BudgetExceeded, ConfigurationError
from winsor.core.ledger import Ledger
from winsor.planning.total import SEARCHED
from winsor.tables import (
    PrivacyBudget,
    PrivateAdditiveClassifier,
    PrivateAdditiveRegressor,
    PrivateBinner,
    PrivateEncoder,
    PrivateGammaRegressor,
    PrivateHuberRegressor,
    PrivateLinearSVC,
    PrivateLogisticRegression,
    PrivatePoissonRegressor,
    PrivateRidge,
    PrivateScaler,
    total_guarantee,
)
from winsor.tables.linear.averaged import AveragedDescent
from winsor.tables.linear.simple import Simple


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


# ------------------------------------------------------------------------------ composites

CLASSIFIED = "the classes are public: they were read off y"


def classifier(**options):
    return PrivateLogisticRegression(**options)


def composites(one):
    """(name, composite, fits, what is said without a budget, what is said with one)."""
    half = {"max_samples": 0.5, "bootstrap": False, "n_estimators": 3}
    three = np.arange(400) % 3
    yield "voting", VotingClassifier([("a", one), ("b", clone(one))]), None, 2, None, None
    yield "rest", OneVsRestClassifier(one), three, 3, None, None
    yield "drawn", BaggingClassifier(one, **half), None, 3, None, None
    yield "fixed", FixedThresholdClassifier(one), None, 1, None, None
    yield "frozen", make_pipeline(FrozenEstimator(SCALED), one), None, 1, None, None
    yield "rfe", RFE(one, n_features_to_select=1), None, 2, "budget", None
    yield "pairs", OneVsOneClassifier(one), three, 3, "budget", None
    head = StackingClassifier([("a", one)], final_estimator=clone(one), cv=2)
    yield "own head", head, None, 4, "budget", None
    yield "stacking", StackingClassifier([("a", one)]), None, 6, *["LogisticRegression"] * 2
    yield "calibrated", CalibratedClassifierCV(one, cv=2), None, 2, *["the calibrators of"] * 2
    tuned = TunedThresholdClassifierCV(one, cv=2)
    yield "tuned", tuned, None, 3, *["the threshold of"] * 2
    some = np.where(np.arange(400) < 300, np.arange(400) % 2, -1)
    yield "self", SelfTrainingClassifier(one, max_iter=1), some, 2, *["the choice of rows of"] * 2
    beside = VotingClassifier([("a", one), ("b", LogisticRegression())])
    yield "beside", beside, None, 1, *["LogisticRegression"] * 2
    yield "scaled", make_pipeline(StandardScaler(), one), None, 1, *["StandardScaler"] * 2
    unknown = Mine(one)
    yield "unknown", unknown, None, 2, "budget", None


class Mine(ClassifierMixin, BaseEstimator):
    """A composite that winsor does not know: it keeps the second of two fits."""

    def __init__(self, inner=None):
        self.inner = inner

    def fit(self, X, y):
        clone(self.inner).fit(X[:200], y[:200])
        self.inner_ = clone(self.inner).fit(X, y)
        self.classes_ = self.inner_.classes_
        return self


SCALED = StandardScaler().fit([[0.0, 0.0], [1.0, 2.0]])
CASES = [name for name, *_ in composites(classifier())]


@pytest.mark.filterwarnings("ignore::winsor.core.contract.PrivacyLeakWarning")
@pytest.mark.parametrize("name", CASES)
def test_every_fit_inside_a_composite_counts_or_is_refused(name, table):
    x, y = table[0], (table[1] > 0).astype(int)
    budget, counted = PrivacyBudget(), []
    for shared in (None, budget):
        case = next(c for c in composites(classifier(budget=shared)) if c[0] == name)
        _, whole, labels, fits, *refusals = case
        whole.fit(x, y if labels is None else labels)
        refusal = refusals[shared is not None]
        if refusal is not None:
            with pytest.raises(ConfigurationError, match=refusal):
                total_guarantee(whole)
            continue
        found = total_guarantee(whole)
        counted.append(found.steps)
        assert CLASSIFIED in found.conditions
    assert len(budget) == fits
    assert set(counted) <= {sum(len(ledger) for ledger, _ in budget.fits)}


@pytest.mark.filterwarnings("ignore::winsor.core.contract.PrivacyLeakWarning")
def test_what_winsor_cannot_see_is_a_condition(table):
    model = classifier(budget=PrivacyBudget())
    found = total_guarantee(Mine(model).fit(table[0], table[1] > 0))
    assert "Mine itself reads no row: winsor cannot see inside" in found.conditions
    picked = SequentialFeatureSelector(model, n_features_to_select=1, cv=2)
    assert SEARCHED in total_guarantee(picked.fit(table[0], table[1] > 0)).conditions


def test_a_target_that_is_scaled_without_privacy_is_refused(table):
    model = PrivateRidge(budget=PrivacyBudget())
    public = TransformedTargetRegressor(model, func=np.arcsinh, inverse_func=np.sinh)
    assert total_guarantee(public.fit(*table)).epsilon <= 1.0
    learnt = TransformedTargetRegressor(model, transformer=StandardScaler())
    with pytest.raises(ConfigurationError, match="StandardScaler"):
        total_guarantee(learnt.fit(*table))


@pytest.mark.parametrize("kind", [BaggingRegressor, AdaBoostRegressor])
def test_rows_that_are_drawn_twice_are_refused_before_a_fit(kind, table):
    budget = PrivacyBudget()
    with pytest.raises(ConfigurationError, match="every row must be in a fit once"):
        kind(PrivateRidge(budget=budget)).fit(*table)
    assert len(budget) == 0


# -------------------------------------------------------------------------------- ceilings


def fits_of_all_kinds(budget):
    """One fit of every estimator that takes a budget, with epsilon=1."""
    options = {"epsilon": 1.0, "budget": budget, "delta": 1e-4}
    y = np.arange(400) % 2
    for kind in (PrivateLogisticRegression, PrivateLinearSVC, PrivateAdditiveClassifier):
        yield lambda x, kind=kind: kind(**options).fit(x, y)
    for kind in (PrivateRidge, PrivateHuberRegressor, PrivateAdditiveRegressor):
        yield lambda x, kind=kind: kind(**options).fit(x, y)
    for kind in (PrivatePoissonRegressor, PrivateGammaRegressor):
        yield lambda x, kind=kind: kind(**options).fit(x, y + 1)
    for kind in (PrivateScaler, PrivateBinner, PrivateEncoder):
        yield lambda x, kind=kind: kind(**options).fit(x)
    averaged = AveragedDescent(clip=1.0, deviation=1.0, smoothness=1.0)
    simple = Simple(clip=0.7, steps=4, learning_rate=0.1)
    for method in ("suffstats", "flat", averaged, simple, "automatic"):
        ridge = PrivateRidge(**options, method=method, feature_bound=3.0, target_range=(-9, 9))
        yield lambda x, ridge=ridge: ridge.fit(x, y)


@pytest.mark.parametrize("place", range(len(list(fits_of_all_kinds(None)))))
def test_a_ceiling_refuses_a_fit_before_its_first_release(place, table, monkeypatch):
    budget = PrivacyBudget(epsilon=1.2, delta=1e-4)
    fit = list(fits_of_all_kinds(budget))[place]
    fit(table[0])
    spent = budget.guarantee().epsilon
    written = []
    for name in ("record", "record_many"):
        monkeypatch.setattr(Ledger, name, lambda self, *rest: written.append(rest))
    with pytest.raises(BudgetExceeded, match="within epsilon=1.2"):
        fit(table[0])
    assert not written and len(budget) == 1 and budget.guarantee().epsilon == spent <= 1.0


def test_a_ceiling_is_reached_and_not_passed(table):
    budget = PrivacyBudget(epsilon=1.0)
    with pytest.raises(BudgetExceeded):
        for _ in range(30):
            PrivateRidge(epsilon=0.3, budget=budget).fit(*table)
    assert len(budget) > 3 and 0.7 < budget.guarantee().epsilon <= 1.0
    assert budget.guarantee() == total_guarantee(budget)
    with pytest.raises(ConfigurationError, match="epsilon"):
        PrivacyBudget(epsilon=-1.0)
    assert "at most epsilon=1" in repr(budget)


def test_a_whole_epsilon_fits_under_its_own_ceiling(table):
    for delta in (None, 1e-4):
        model = PrivateRidge(epsilon=1.0, delta=delta, budget=PrivacyBudget(epsilon=1.0))
        assert model.fit(*table).epsilon_ <= 1.0


def test_a_search_stops_at_the_ceiling(table):
    model = PrivateRidge(epsilon=1.0, budget=PrivacyBudget(epsilon=2.0))
    search = GridSearchCV(model, {"alpha": [0.0, 0.1, 1.0]}, cv=2, error_score="raise")
    with pytest.raises(BudgetExceeded):
        search.fit(*table)
    assert total_guarantee(model.budget).epsilon <= 2.0


def test_a_fit_that_is_repeated_to_the_letter_is_free_under_a_ceiling(table):
    budget = PrivacyBudget(epsilon=1.0)
    for _ in range(3):
        PrivateRidge(epsilon=1.0, random_state=0, budget=budget).fit(*table)
    assert len(budget) == 1


def test_a_continued_fit_counts_what_it_spent_before(table):
    model = PrivateRidge(epsilon=1.0, budget=PrivacyBudget(epsilon=1.2)).partial_fit(*table)
    with pytest.raises(BudgetExceeded):
        model.partial_fit(*table)
    assert model.set_params(budget=PrivacyBudget(epsilon=3.0)).partial_fit(*table).epsilon_ > 1.2
    with pytest.raises(BudgetExceeded):
        model.set_params(budget=PrivacyBudget(epsilon=1.2)).partial_fit(*table)
