"""Whitened descent and sufficient statistics: raw units, bounds, one record's influence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.core.prepaid import PrepaidDoor, Receipt
from winsor.tables import (
    PrivateHuberRegressor,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateRidge,
    SufficientStatistics,
    Whitened,
)
from winsor.tables.linear.metric import Metric
from winsor.tables.linear.scaled import Scaling
from winsor.tables.ranges.distribution import Distribution

RAW = [PrivateLinearRegression, PrivateRidge]


@pytest.fixture(scope="module")
def raw():
    """Columns in units nobody scaled, and a target in euros with a heavy tail."""
    rng = np.random.default_rng(0)
    n = 20_000
    x = np.column_stack(
        [
            1950 + 60 * rng.random(n),
            rng.lognormal(8, 1, size=n),
            rng.random(n) < 0.1,
            rng.normal(size=n) * 1e-3,
        ]
    )
    mean = 1000 + 20 * (x[:, 0] - 1980) + 800 * x[:, 2] + 3e5 * x[:, 3]
    y = mean + 500 * (rng.pareto(2.2, size=n) - 1 / 1.2)
    return x, y, mean


@pytest.mark.parametrize("estimator", RAW)
def test_raw_units_need_no_scaling(raw, estimator):
    x, y, mean = raw
    model = estimator(epsilon=1.0, random_state=0).fit(x, y)
    assert np.mean(model.predict(x)) == pytest.approx(y.mean(), rel=0.05)
    assert np.corrcoef(model.predict(x), mean)[0, 1] > 0.95
    assert 0.99 < model.epsilon_ <= 1.0


def test_the_unit_of_the_target_does_not_matter(raw):
    x, y, _ = raw
    key = bytes(range(32))
    euros = PrivateLinearRegression(random_state=key, target_range=(0, 1e4)).fit(x, y)
    cents = PrivateLinearRegression(random_state=key, target_range=(0, 1e6)).fit(x, 100 * y)
    assert np.allclose(100 * euros.predict(x), cents.predict(x))


def test_huber_follows_the_bulk(raw):
    x, y, _ = raw
    model = PrivateHuberRegressor(epsilon=1.0, random_state=0).fit(x, y)
    middle = np.median(y - model.predict(x))
    assert abs(middle) < 150  # euros: the scale of the residuals is 500


def test_bounds_do_not_make_it_worse():
    rng = np.random.default_rng(0)
    x = (rng.random((8000, 30)) < 0.15).astype(float)
    y = (x @ rng.normal(size=30) + rng.logistic(size=8000) > 0).astype(int)
    scores = {
        name: np.mean(
            [
                PrivateLogisticRegression(random_state=i, **options).fit(x, y).score(x, y)
                for i in range(3)
            ]
        )
        for name, options in {
            "learnt": {},
            "bounds": {"bounds": (0, 1)},
            "norm": {"feature_bound": 4.0},
        }.items()
    }
    assert scores["bounds"] > scores["learnt"] - 0.005
    assert scores["norm"] > scores["learnt"] - 0.005


def test_predictions_are_winsorised_like_the_fit(raw):
    x, y, _ = raw
    model = PrivateLinearRegression(epsilon=1.0, random_state=0).fit(x, y)
    low, high = model.feature_range_.T
    far = np.vstack([low - 1e9, high + 1e9])
    assert np.allclose(model.predict(far), model.predict(np.vstack([low, high])))


def test_few_rows_are_taken_for_standardised_ones():
    x = np.random.default_rng(0).normal(size=(50, 30))
    model = PrivateLogisticRegression(random_state=0).fit(x, (x[:, 0] > 0).astype(int))
    assert model.feature_range_.tolist() == [[-4.0, 4.0]] * 30
    assert not model.coef_.any()


def test_a_classifier_of_few_rows_looks_at_a_few_columns():
    rng = np.random.default_rng(0)
    y = rng.random(500) < 0.5
    x = 1000 + 200 * rng.normal(size=(500, 30)) + 300 * y[:, None]
    found = [PrivateLogisticRegression(0.3, random_state=i).fit(x, y) for i in range(5)]
    assert {tuple(np.flatnonzero(model.coef_)) for model in found} <= {(3, 11, 18, 26)}
    assert np.mean([model.score(x, y) for model in found]) > 0.75
    assert all(model.epsilon_ <= 0.3 for model in found)


@pytest.mark.parametrize("seed", range(3))
def test_bounds_of_few_rows_are_worth_more_than_the_majority(seed):
    """Noise hides X'X here, and was in proportion to rows far longer than any is."""
    rng = np.random.default_rng(seed)
    y = rng.random(500) < 0.6
    x = 14 + 3 * rng.normal(size=(500, 30)) + 5 * y[:, None]
    models = [
        PrivateLogisticRegression(0.3, bounds=(0, 40), random_state=i).fit(x, y) for i in range(5)
    ]
    assert np.mean([model.score(x, y) for model in models]) > 0.8


def test_wide_bounds_are_not_taken_for_the_scale_of_a_column():
    """Proportions of a few per cent in (0, 1), amounts far below their bounds: one round finds
    them, and what is found lies within the bounds."""
    rng = np.random.default_rng(0)
    latent = rng.normal(size=(600, 10))
    x = np.exp(latent / 2) * np.array([0.02] * 5 + [10.0] * 5)
    y = latent.sum(axis=1) + rng.normal(size=600) > 0
    bounds = [(0, 1)] * 5 + [(0, 500)] * 5
    models = [
        PrivateLogisticRegression(2.0, bounds=bounds, random_state=i).fit(x, y) for i in range(5)
    ]
    learnt = [PrivateLogisticRegression(2.0, random_state=i).fit(x, y) for i in range(5)]
    given, found = (np.mean([m.score(x, y) for m in each]) for each in (models, learnt))
    assert given > 0.75 and given > found - 0.02
    low, high = np.array(bounds).T
    for model in models:
        assert (model.feature_range_[:, 0] >= low).all()
        assert (model.feature_range_[:, 1] <= high).all()
        assert np.median(model.feature_range_[:, 1] / high) < 0.5


def test_the_metric_knows_how_long_rows_are_in_it():
    rng = np.random.default_rng(0)
    table = rng.uniform(-1, 1, size=(1000, 9)) * 0.3
    gram = table.T @ table / 1000
    seen, hidden = Metric.of(gram, 1e-6), Metric.of(gram, 0.1)
    assert seen.size == pytest.approx(9)
    length = np.mean(np.sum((table @ hidden.root) ** 2, axis=1))
    assert hidden.size == 1.0 > length
    half = Metric.of(gram, 0.004)
    length = np.mean(np.sum((table @ half.root) ** 2, axis=1))
    assert half.size == pytest.approx(length) and 1 < length < 9


def test_learnt_ranges_stay_within_bounds():
    found = Distribution(np.array([0.0, 10.0, 20.0]), np.array([0.5, 0.5]))
    scaling = Scaling.of(np.full((2, 2), np.nan), [found, found])
    assert scaling.low[0] < 0 and scaling.high[0] > 20
    inside = scaling.within(np.array([[0.0, 15.0], [np.nan, np.nan]]))
    assert (inside.low[0], inside.high[0]) == (0.0, 15.0)
    assert (inside.low[1], inside.high[1]) == (scaling.low[1], scaling.high[1])
    nowhere = scaling.within(np.array([[50.0, 60.0], [np.nan, np.nan]]))
    assert nowhere.low[0] == scaling.low[0] and nowhere.reach.min() > 0


# ------------------------------------------------------------------------- sufficient statistics


def test_the_closed_form_and_its_free_path(raw):
    x, y, mean = raw
    model = PrivateRidge(method="suffstats", alpha=0.0, epsilon=2.0, random_state=0).fit(x, y)
    assert np.corrcoef(model.predict(x), mean)[0, 1] > 0.9
    before = len(model.ledger_)
    path = model.regularisation_path([0.0, 0.1, 10.0])
    assert len(model.ledger_) == before
    assert np.allclose(path[0][1], model.coef_)
    assert path[0][2] == pytest.approx(model.intercept_)
    scale = np.ptp(model.feature_range_, axis=1)
    lengths = [np.linalg.norm(coef * scale) for _, coef, _ in path]
    assert lengths[0] > lengths[1] > lengths[2]


def test_refining_winsorises_residuals(raw):
    x, y, mean = raw
    gaps = {
        steps: np.mean(
            [
                np.std(
                    PrivateRidge(
                        method=SufficientStatistics(refine=steps), alpha=0.0, random_state=seed
                    )
                    .fit(x, y)
                    .predict(x)
                    - mean
                )
                for seed in range(3)
            ]
        )
        for steps in (0, 6)
    }
    assert gaps[6] < gaps[0]


def test_other_losses_have_no_sufficient_statistics():
    x = np.random.default_rng(0).normal(size=(200, 2))
    with pytest.raises(ConfigurationError, match="squared"):
        PrivateHuberRegressor(method="suffstats").fit(x, x[:, 0])
    with pytest.raises(ConfigurationError, match="suffstats"):
        PrivateRidge(random_state=0).fit(x, x[:, 0]).regularisation_path([1.0])


@pytest.mark.parametrize("regulariser", ["floor", "adassp"])
def test_regularisers_survive_noise_far_above_the_data(regulariser):
    x = np.random.default_rng(0).normal(size=(60, 5))
    method = SufficientStatistics(regulariser)
    model = PrivateRidge(method=method, epsilon=0.1, random_state=0).fit(x, x[:, 0])
    assert np.isfinite(model.predict(x)).all()


# -------------------------------------------------------------------------- one record's influence


class Recorder:
    """Every release of a fit before noise, with its sensitivity. The noise is replayed, so that a
    second fit sees what the first saw, and differs in what its own rows contribute only."""

    def __init__(self, monkeypatch, replay=None):
        self.released, self.bounds, self.proofs = [], [], []
        honest_pay, honest_release = PrepaidDoor.pay, Receipt.release
        recorder = self

        def pay(door, mechanism, sampler, sensitivity, steps, shape):
            recorder.bounds += [sensitivity] * steps
            return honest_pay(door, mechanism, sampler, sensitivity, steps, shape)

        def release(receipt, value):
            number = len(recorder.released)
            before = value.copy()
            noisy = honest_release(receipt, value)
            if replay is not None:
                noisy[...] = replay.released[number][1]
            recorder.released.append((before, noisy.copy()))
            return noisy

        monkeypatch.setattr(PrepaidDoor, "pay", pay)
        monkeypatch.setattr(Receipt, "release", release)


METHODS = ["whitened", "suffstats", SufficientStatistics(refine=3), Whitened(steps=4)]


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("relation", [each.value for each in Neighbouring])
@pytest.mark.parametrize("extreme", [0.0, 1e9, -1e9])
def test_one_record_moves_each_release_by_no_more_than_stated(
    monkeypatch, method, relation, extreme
):
    """Given everything released before it, as composition asks. n is public: kept as it is."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(40, 3)), rng.normal(size=40)
    other_x, other_y = x.copy(), y.copy()
    other_x[-1], other_y[-1] = extreme, -extreme
    model = PrivateLinearRegression(method=method, epsilon=20.0, relation=relation, random_state=0)
    with monkeypatch.context() as patch:
        first = Recorder(patch)
        model.fit(x, y)
    with monkeypatch.context() as patch:
        second = Recorder(patch, first)
        model.fit(other_x, other_y)
    assert len(first.released) == len(second.released) == len(first.bounds)
    for (one, _), (two, _), bound in zip(
        first.released, second.released, first.bounds, strict=True
    ):
        assert np.linalg.norm(one - two) <= bound.replace * (1 + 1e-9)


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3),
    st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3),
)
@settings(max_examples=100, deadline=None)
def test_scaled_columns_stay_within_one(row, ends):
    low, high = np.array(ends) - 1.0, np.array(ends) + 1.0
    scaling = Scaling.of(np.stack([low, high], axis=1), [])
    assert np.abs(scaling.apply(np.array([row]))).max() <= 1.0


def test_zeros_and_ones_are_taken_for_an_indicator():
    """In either order, and no wider than that; a column of zeros and twos is not one."""
    draw = np.random.default_rng(0)
    flags = draw.random((20_000, 4)) < [0.3, 0.8, 0.5, 0.998]
    x = np.c_[flags * [1.0, 1.0, 2.0, 1.0], draw.uniform(0, 1.1, 20_000)]
    model = PrivateLinearRegression(random_state=0).fit(x, x.sum(axis=1))
    ranges = model.feature_range_
    assert ranges[:2].tolist() == [[0.0, 1.0]] * 2
    assert ranges[2, 1] > 2.0 and ranges[4, 1] > 1.05
    assert ranges[3, 0] == 0.0 and 1.0 <= ranges[3, 1] < 2.0  # zeros too rare to be seen
