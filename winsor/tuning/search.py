"""Randomised search for scikit-learn estimators, with the price of the search in epsilon.

    search = PrivateRandomizedSearchCV(
        PrivateLogisticRegression(), {"alpha": stats.loguniform(1e-4, 1)}, epsilon=1.0, n_iter=10
    ).fit(X, y)
    search.best_estimator_, search.epsilon_

A trial fits the estimator on a part of the rows and scores it on the rest: privately, by a noisy
accuracy or R2, or for free on public rows. The number of trials is random with mean ``n_iter``; the
best fitted estimator is released as it is. (Fitting it again on all rows would cost again; k folds
would put every row into k - 1 fits, so one split is used.)

What a trial spends is found beforehand by fitting the estimator to made-up rows of the same shape:
what a private fit records does not depend on the values of the rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_regressor
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from winsor.core.accounting import certify
from winsor.core.checks import as_delta, as_relation, fraction, positive
from winsor.core.contract import CalibrationError, ConfigurationError, Neighbouring, UnsoundRelease
from winsor.core.events.registry import History
from winsor.core.randomness import key_for, new_key, stream
from winsor.metrics import R2, Accuracy, Metric
from winsor.planning.shared_budget import settings_of
from winsor.tables.inputs import data_of
from winsor.tables.refused_tables import as_labels, as_table, as_targets
from winsor.tables.surroundings import fitted_on_purpose
from winsor.tuning.outcome import Job
from winsor.tuning.price import whole_event
from winsor.tuning.pruning import PrivateScore
from winsor.tuning.space import Space
from winsor.tuning.trial_counts import TruncatedNegativeBinomial
from winsor.tuning.trials import tune

_NOT_TUNED = ("epsilon", "delta", "noise_multiplier", "relation", "random_state")
_ROUNDS = 12  # of the search for a trial's budget
_CLOSE = 0.98  # of the target: what is good enough


class PrivateRandomizedSearchCV(MetaEstimatorMixin, BaseEstimator):
    """Search over settings of a private estimator within one budget.

    Parameters
    ----------
    estimator
        A private estimator with ``epsilon``, ``delta`` and ``random_state``, which keeps its ledger
        in ``ledger_``: those of `winsor.tables.linear`.
    param_distributions
        Names of parameters with lists or scipy distributions. They must not change what a fit
        spends (its number of steps, its batch size): such a setting is refused when it comes up.
    epsilon, delta
        The budget of the whole search.
    n_iter
        Mean number of trials, which is random and stays secret.
    holdout
        Share of the rows that score, where no public rows are given to `fit`.
    score_std
        Standard deviation of the noise of a private accuracy; of each scaled mean behind a private
        R2, whose own noise is larger by the share of ``target_range`` that the targets do not use.
    target_range
        (low, high), public: needed for the private score of a regression.

    Attributes
    ----------
    best_estimator_, best_params_, best_score_
        The winner.
    epsilon_, delta_, guarantee_, ledger_
        What the search spent.
    """

    def __init__(
        self,
        estimator: Any,
        param_distributions: Mapping[str, Any],
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        n_iter: float = 10,
        holdout: float = 0.2,
        score_std: float = 0.01,
        target_range: tuple[float, float] | None = None,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.param_distributions = param_distributions
        self.epsilon = epsilon
        self.delta = delta
        self.n_iter = n_iter
        self.holdout = holdout
        self.score_std = score_std
        self.target_range = target_range
        self.random_state = random_state

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        X_public: ArrayLike | None = None,
        y_public: ArrayLike | None = None,
    ) -> Self:
        """Search on the private rows; with public rows, these do the scoring and cost nothing."""
        self._refuse_budgets()
        rows = as_table(X)
        targets, known, condition = self._targets(y)
        n = rows.shape[0]
        relation = as_relation(self.estimator.get_params().get("relation", "add_or_remove_one"))
        delta = as_delta(self.delta, n)
        key = key_for(self.random_state, 0, settings_of(self), *data_of(rows), targets)
        free = X_public is not None
        split = _split(n, 0.0 if free else fraction("holdout", self.holdout), key)
        score = None if free else self._score(int(np.count_nonzero(split)))
        inside, labels = rows[~split], targets[~split]
        budget = self._trial_budget(inside, known, delta, score, relation)

        def train(setting: dict[str, Any], job: Job) -> tuple[Any, Any, Any]:
            with fitted_on_purpose():
                model = self._one(setting, budget, delta, job.key).fit(inside, labels, **known)
            if score is None:
                return model, model.ledger_, model.score(X_public, y_public)
            guesses = model.predict(rows[split])
            found = job.measure(model.ledger_, targets=targets[split], predictions=guesses)
            return model, model.ledger_, found

        result = tune(
            train,
            dict(self.param_distributions),
            trial=self._history(inside, known, budget, delta),
            epsilon=positive("epsilon", self.epsilon),
            delta=delta,
            trials=self.n_iter,
            score=score,
            relation=relation,
            random_state=key,
        )
        self.best_estimator_ = result.best_model
        self.best_params_, self.best_score_ = result.best_setting, result.best_score
        said = tuple(dict.fromkeys((*result.guarantee.conditions, *condition)))
        self.guarantee_ = dataclasses.replace(result.guarantee, conditions=said)
        self.ledger_ = result.ledger
        self.epsilon_, self.delta_ = result.guarantee.epsilon, result.guarantee.delta
        self.n_features_in_ = rows.shape[1]
        # The winner's own ledger is one trial's: the number that counts is that of the search.
        _settle(self.best_estimator_, self)
        return self

    def _refuse_budgets(self) -> None:
        for name in _NOT_TUNED:
            if name in self.param_distributions:
                raise UnsoundRelease(
                    f"a trial must spend at most what was declared. Got {name} among the settings "
                    "to be tuned instead, which changes it. Give the budget of the whole search."
                )

    def _score(self, count: int) -> PrivateScore:
        if count == 0:
            raise ConfigurationError(
                "holdout must leave at least one row for the score. Got none instead. Raise "
                "holdout, or give public rows to fit."
            )
        metric: Metric = Accuracy()
        if is_regressor(self.estimator):
            if self.target_range is None:
                raise ConfigurationError(
                    "target_range must be given for the private score of a regression. Got None "
                    "instead. Give the public range of the targets, or public rows to fit."
                )
            metric = R2(*self.target_range)
        return PrivateScore.of_std(metric, positive("score_std", self.score_std), count)

    def _one(self, setting: Mapping[str, Any], budget: float, delta: float, key: bytes) -> Any:
        model = clone(self.estimator).set_params(**setting)
        return model.set_params(epsilon=budget, delta=delta, random_state=key)

    def _targets(self, y: Any) -> tuple[NDArray[Any], dict[str, Any], tuple[str, ...]]:
        """Targets; the classes of all of them, for a random part may lack one, and that would
        show; and what the guarantee must say."""
        if is_regressor(self.estimator):
            return as_targets(y), {}, ()
        if not has_fit_parameter(self.estimator, "classes"):
            raise ConfigurationError(
                "estimator must take classes= in fit, or be a regressor: the classes of a random "
                f"part of the rows are private. Got {type(self.estimator).__name__} instead."
            )
        classes, codes, condition = as_labels(y)
        return classes[codes], {"classes": classes}, (condition,)

    def _history(self, X: Any, known: dict[str, Any], budget: float, delta: float) -> History:
        """What a fit within ``budget`` records, from made-up rows of the same shape.

        At one setting for all: another that spends otherwise is refused when it comes up.
        """
        rng, n = np.random.default_rng(0), X.shape[0]
        made_up: Any = sparse.csr_array(sparse.eye_array(*X.shape))
        if not sparse.issparse(X):
            made_up = rng.standard_normal(X.shape)
        options = known.get("classes", np.linspace(0, 1, 7))
        labels = options[np.arange(n) % len(options)]
        some = Space.of(dict(self.param_distributions)).draw(np.random.default_rng(0))
        with fitted_on_purpose():
            model = self._one(some, budget, delta, new_key(0)).fit(made_up, labels, **known)
        history: History = model.ledger_.history()
        return history

    def _trial_budget(
        self,
        X: Any,
        known: dict[str, Any],
        delta: float,
        score: PrivateScore | None,
        relation: Neighbouring,
    ) -> float:
        """The epsilon of one fit at which the whole search spends nearly all of its own."""
        law = TruncatedNegativeBinomial.of_mean(positive("n_iter", self.n_iter))
        target = positive("epsilon", self.epsilon)

        def spent(budget: float) -> float:
            fit = self._history(X, known, budget, delta)
            extra = [] if score is None else [(score.event(relation), 1)]
            event = whole_event([*fit, *extra], law)
            return certify([(event, 1)], delta, relation).epsilon

        return _largest_within(spent, target)

    @property
    def classes_(self) -> Any:
        """Classes of the best estimator."""
        return self.best_estimator_.classes_

    def predict(self, X: ArrayLike) -> Any:
        """Predict with the best estimator."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict(X)

    def score(self, X: ArrayLike, y: ArrayLike) -> float:
        """Score the best estimator on rows that are public or not to be protected."""
        check_is_fitted(self, "best_estimator_")
        return float(self.best_estimator_.score(X, y))

    @available_if(lambda self: hasattr(self.estimator, "predict_proba"))
    def predict_proba(self, X: ArrayLike) -> Any:
        """Predict class probabilities with the best estimator."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict_proba(X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = self.estimator.__sklearn_tags__()
        tags.estimator_type = inner.estimator_type
        tags.classifier_tags, tags.regressor_tags = inner.classifier_tags, inner.regressor_tags
        return tags


def _split(n: int, share: float, key: bytes) -> NDArray[np.bool_]:
    """Which rows score: a fixed number of places, drawn under the key, whatever stands there."""
    chosen = np.zeros(n, dtype=bool)
    count = round(share * n)
    if count:
        chosen[stream(key, "holdout", 0).permutation(n)[:count]] = True
    return chosen


def _largest_within(spent: Callable[[float], float], target: float) -> float:
    """A budget whose search spends between 98 % and all of ``target``."""
    low, high = 0.0, target
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        found = spent(middle)
        low, high = (middle, high) if found <= target else (low, middle)
        if _CLOSE * target <= found <= target:
            break
    if low == 0.0:
        raise CalibrationError(
            f"epsilon must leave something for a fit. Got {target!r} instead, which the private "
            "score alone uses up. Raise epsilon or score_std, or give public rows to fit."
        )
    return low


def _settle(model: Any, search: PrivateRandomizedSearchCV) -> None:
    model.ledger_, model.guarantee_ = search.ledger_, search.guarantee_
    model.epsilon_, model.delta_ = search.epsilon_, search.delta_
    model.random_state = None  # the trial's key: whoever holds it can subtract the noise
