"""Paper 4 in the linear models: trajectories, losses with a kink, what Theorem 6 can afford."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import QuantileRegressor
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import estimator_checks_generator
from winsor_papers.theory import AclipProblem, aclip_restarts

from winsor.core.contract import ConfigurationError
from winsor.tables import (
    AveragedDescent,
    FlatDescent,
    PrivateLinearSVC,
    PrivateLogisticRegression,
    PrivateMedianRegressor,
    PrivateRidge,
    Restarted,
    RobustGD,
    Ruled,
)
from winsor.tables.linear.averaged import affordable_alpha, affordable_runs
from winsor.tables.losses import Absolute, Hinge
from winsor.tails.datasets import gaussian_design

HAND = {"clip": 0.5, "batch_size": 50, "learning_rate": 0.2}
METHODS = {
    "flat": FlatDescent(steps=20, record=8),
    "plain": FlatDescent.plain(steps=20, record=8),
    "averaged": AveragedDescent(steps=20, record=8, **HAND),
    "restarted": Restarted(runs=2, steps=10, record=8, **HAND),
    "robust_gd": RobustGD(scale=1.0, learning_rate=0.3, steps=20, record=8),
}


@pytest.fixture(scope="module")
def labelled():
    data = gaussian_design(500, 3, task="logistic", scale=0.3, seed=0)
    return data.x, data.y.astype(int)


@pytest.fixture(scope="module")
def measured():
    data = gaussian_design(2000, 3, task="ridge", scale=0.3, seed=0)
    return data.x, data.y


# -------------------------------------------------------------------------------- trajectories


@pytest.mark.parametrize("name", METHODS)
def test_the_trajectory_ends_at_the_answer_and_costs_nothing(name, labelled):
    method = METHODS[name]
    model = PrivateLogisticRegression(method=method, epsilon=2.0, random_state=bytes(32))
    model.fit(*labelled)
    silent = clone(method).set_params(record=None)
    other = PrivateLogisticRegression(method=silent, epsilon=2.0, random_state=bytes(32))
    other.fit(*labelled)
    assert not hasattr(other, "trajectory_")
    np.testing.assert_array_equal(model.coef_, other.coef_)
    assert model.epsilon_ == other.epsilon_
    assert len(model.ledger_) == len(other.ledger_)
    steps = [point.step for point in model.trajectory_]
    assert steps == ([8, 10, 18, 20] if name == "restarted" else [8, 16, 20])
    last = model.trajectory_[-1]
    if name != "flat":  # which answers with the mean of its last quarter
        np.testing.assert_allclose(last.coef, model.coef_, atol=1e-12)
        np.testing.assert_allclose(last.intercept, model.intercept_, atol=1e-12)
    assert last.coef.shape == model.coef_.shape


def test_a_trajectory_is_the_answer_of_a_shorter_run(labelled):
    """With the same noise and batches the first 8 steps are those of a run of 8."""
    long, short = (
        PrivateLogisticRegression(
            method=AveragedDescent(steps=steps, record=8, **HAND),
            noise_multiplier=1.0,
            random_state=bytes(32),
        ).fit(*labelled)
        for steps in (20, 8)
    )
    np.testing.assert_allclose(long.trajectory_[0].coef, short.coef_, atol=1e-12)


def test_trajectories_are_in_the_units_of_the_data(measured):
    model = PrivateRidge(
        method=AveragedDescent(steps=4, record=2, **HAND), feature_bound=5.0, target_range=(-2, 4),
        epsilon=5.0, random_state=0,
    ).fit(*measured)  # fmt: skip
    np.testing.assert_allclose(model.trajectory_[-1].coef, model.coef_)
    assert model.trajectory_[-1].intercept == pytest.approx(model.intercept_)


@pytest.mark.parametrize("record", [0, -1, 2.5])
def test_record_must_be_a_number_of_steps(record, labelled):
    with pytest.raises(ConfigurationError, match="record must be"):
        PrivateLogisticRegression(method=FlatDescent(steps=2, record=record)).fit(*labelled)


# -------------------------------------------------------------------------- losses with a kink


@pytest.mark.parametrize("loss", [Hinge(), Absolute()])
def test_residuals_are_subgradients(loss):
    rng = np.random.default_rng(0)
    z, other = rng.normal(size=200) * 3, rng.normal(size=200) * 3
    y = rng.integers(0, 2, 200) if isinstance(loss, Hinge) else rng.normal(size=200)
    slope = loss.residual(z, y)
    assert np.abs(slope).max() <= loss.slope
    assert (loss.value(other, y) >= loss.value(z, y) + slope * (other - z) - 1e-12).all()


KINKED = {
    "flat": "flat",
    "averaged": AveragedDescent(clip=5.0, batch_size=200, learning_rate=1.0, steps=800),
    "restarted": Restarted(runs=2, steps=500, clip=5.0, batch_size=200, learning_rate=1.0),
    "a rule": Ruled("flat", {"max_grad_norm": 1.0}, steps=50),
}


@pytest.mark.parametrize("method", KINKED.values(), ids=KINKED)
def test_the_hinge_is_learned(method, labelled):
    x, y = labelled
    model = PrivateLinearSVC(
        method=method, noise_multiplier=1e-3, feature_bound=4.0, random_state=0
    )
    best = LinearSVC(loss="hinge", C=1.0, max_iter=100_000).fit(x, y).score(x, y)
    assert model.fit(x, y).score(x, y) > best - 0.05


@pytest.mark.parametrize("method", KINKED.values(), ids=KINKED)
def test_the_median_is_learned_whatever_the_targets_tails(method, measured):
    x, y = measured
    heavy = y + 50 * (np.random.default_rng(0).random(len(y)) < 0.05)  # a tail that moves the mean
    model = PrivateMedianRegressor(
        method=method, noise_multiplier=1e-3, feature_bound=4.0, random_state=0
    ).fit(x, heavy)
    best = QuantileRegressor(alpha=0.0).fit(x, heavy)
    start = np.abs(heavy).mean()
    ours, theirs = (np.abs(m.predict(x) - heavy).mean() for m in (model, best))
    assert ours - theirs < 0.5 * (start - theirs)


def test_theorem_7_takes_the_exponent_of_the_loss(labelled):
    """nu = 0 by itself, with M_0 = 2 sup|subgradient| and no projection."""
    x, y = labelled
    model = PrivateLinearSVC(method="averaged", feature_bound=1.0, noise_multiplier=1.0)
    model.fit(x / np.linalg.norm(x, axis=1).max(), y)
    smooth = PrivateLogisticRegression(
        method=AveragedDescent(exponent=0.0), feature_bound=1.0, noise_multiplier=1.0
    ).fit(x, y)
    assert model.n_iter_ == smooth.n_iter_  # the same M_0, sigma and R


@pytest.mark.parametrize("method", ["simple", "iterative", "restarted", "robust_gd"])
def test_theorems_for_smooth_losses_say_so(method, labelled):
    model = PrivateLinearSVC(method=method, feature_bound=4.0, alpha=1.0)
    with pytest.raises(ConfigurationError, match=r"smooth .*Theorem 7"):
        model.fit(*labelled)


def test_a_kinked_classifier_is_for_two_classes():
    with pytest.raises(ConfigurationError, match="Only binary classification"):
        PrivateLinearSVC().fit(np.eye(3), [0, 1, 2])


@pytest.mark.parametrize("estimator", [PrivateLinearSVC(), PrivateMedianRegressor()])
def test_they_obey_scikit_learn(estimator):
    for one, check in estimator_checks_generator(estimator):
        if not any(each in str(check) for each in ("array_api", "check_supervised_y_no_nan")):
            check(one)


# -------------------------------------------------------------------------------- Theorem 6


def with_alpha(alpha, n=20_000, **options):
    data = gaussian_design(n, 3, task="logistic", scale=0.3, seed=0)
    model = PrivateLogisticRegression(
        method=Restarted(**options), alpha=alpha, feature_bound=4.0, noise_multiplier=2.0
    )
    return model.fit(data.x, data.y.astype(int))


@pytest.mark.parametrize("alpha", [0.01, 0.1, 1.0])
def test_the_refusal_says_what_is_affordable(alpha):
    with pytest.raises(ConfigurationError, match="Affordable: most_steps=") as refused:
        with_alpha(alpha)
    text = str(refused.value)
    assert ('runs="affordable"' in text) == (alpha > 0.05)  # below, not even one run fits
    enough = float(re.search(r"alpha=([0-9.]+) or more", text).group(1))
    assert alpha < enough < 10


def test_what_is_offered_runs():
    with pytest.raises(ConfigurationError, match="Affordable") as refused:
        with_alpha(10.0, n=100, most_steps=25_000)
    text = str(refused.value)
    total = int(re.search(r"most_steps=(\d+)", text).group(1))
    runs = int(re.search(r"runs=(\d+),", text).group(1))
    fits = with_alpha(10.0, n=100, runs="affordable", most_steps=25_000)
    assert total > 25_000 >= fits.n_iter_
    assert fits.n_iter_ * (runs + 1) > 25_000 * runs  # one more would not fit
    assert len(fits.ledger_) == fits.n_iter_


def test_affordable_settings_are_the_largest_that_fit():
    problem = AclipProblem(0.5 + 1.0, 1.0, 1.4, 20_000, 4, 1.0, 1e-5)
    each = aclip_restarts(problem, 1.0).steps
    runs = affordable_runs(problem, 1.0, 200_000)
    assert runs * each <= 200_000 < (runs + 1) * each
    assert affordable_runs(problem, 1.0, 10**9) == 15  # not more than the theorem's own
    alpha = affordable_alpha(problem, 1.0, 15, 200_000)
    for candidate, within in ((alpha, True), (alpha / 1.02, False)):
        changed = problem._replace(smoothness=0.5 + candidate)
        total = 15 * aclip_restarts(changed, candidate, 15).steps
        assert (total <= 200_000) == within
    assert affordable_alpha(problem, 1.0, 15, 10) == math.inf
