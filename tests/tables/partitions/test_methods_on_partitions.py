"""Quantiles, scaler, ridge and metrics of partitions are those of one table."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winsor import metrics
from winsor.core.contract import ConfigurationError, ProtocolError
from winsor.tables import (
    PrivateHuberRegressor,
    PrivateLinearRegression,
    PrivateRidge,
    partitions,
    ranges,
)
from winsor.tables.linear.sufficient import SufficientStatistics
from winsor.tables.partitions.source import Passes, row_digest
from winsor.tables.transformers import PrivateScaler

KEY = bytes(range(32))
CUTS = [[], [1], [10, 10, 4_000], range(100, 9_000, 400)]


@pytest.fixture(scope="module")
def table():
    chance = np.random.default_rng(0)
    x = chance.standard_t(3, size=(9_000, 2)) * [1.0, 300.0] + [5.0, 0.0]
    y = x @ [2.0, 0.01] + 7 + chance.normal(size=9_000)
    return np.column_stack([x, y])


def cut(table, places=(3_000, 7_000)):
    parts = np.split(table, list(places))
    loaders = [lambda part=part: part for part in parts]
    return partitions.Partitions.of_loaders(loaders, columns=table.shape[1])


@pytest.mark.parametrize("places", CUTS)
@pytest.mark.parametrize("bounds", [None, [(-50, 50), None, (-50, 50)], (-1e4, 1e4)])
def test_quantiles(table, places, bounds):
    options = {"bins": 16, "bounds": bounds, "epsilon": 2.0, "random_state": KEY}
    whole = ranges.private_bins(table, **options)
    found = partitions.quantiles(cut(table, places), [0.1, 0.5, 0.9], **options)
    expected = np.array([each.quantile([0.1, 0.5, 0.9]) for each in whole.distributions])
    assert found.values.tolist() == expected.tolist()
    assert found.guarantee.epsilon == whole.guarantee.epsilon


def test_quantiles_are_near_those_of_the_rows(table):
    found = partitions.quantiles(cut(table), [0.25, 0.5], epsilon=5.0, random_state=KEY)
    true = np.quantile(table, [0.25, 0.5], axis=0).T
    assert (np.abs(found.values - true) < 0.1 * table.std(axis=0)[:, None]).all()
    with pytest.raises(ConfigurationError, match="levels"):
        partitions.quantiles(cut(table), [1.5], epsilon=1.0)


@pytest.mark.parametrize("places", CUTS)
@pytest.mark.parametrize("limits", [(-10.0, 10.0), (None, None)])
def test_the_scaler(table, places, limits):
    low, high = limits
    options = {"low": low, "high": high, "epsilon": 1.0, "random_state": KEY}
    whole = PrivateScaler(**options).fit(table)
    found = partitions.fit_scaler(PrivateScaler(**options), cut(table, places))
    assert np.allclose(found.mean_, whole.mean_, rtol=1e-9, atol=0)
    assert np.allclose(found.scale_, whole.scale_, rtol=1e-9, atol=0)
    assert found.epsilon_ == whole.epsilon_
    assert np.allclose(found.transform(table[:5]), whole.transform(table[:5]))


@pytest.mark.parametrize("places", CUTS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bounds": [(-100, 100), None], "fit_intercept": False},
        {"feature_bound": 2_000.0, "target_range": (-100, 100)},
        {"bounds": (-1, 1), "method": SufficientStatistics(regulariser="adassp")},
    ],
)
def test_ridge(table, places, options):
    options = {"method": "suffstats", "epsilon": 2.0, "random_state": KEY} | options
    whole = PrivateRidge(**options).fit(table[:, :2], table[:, 2])
    found = partitions.fit_ridge(PrivateRidge(**options), cut(table, places))
    assert np.allclose(found.coef_, whole.coef_, rtol=1e-9, atol=1e-12)
    assert np.isclose(found.intercept_, whole.intercept_, rtol=1e-9, atol=1e-9)
    assert found.guarantee_.epsilon == whole.guarantee_.epsilon
    assert np.allclose(found.predict(table[:9, :2]), whole.predict(table[:9, :2]))
    for one, other in zip(
        found.regularisation_path([0.1, 1]), whole.regularisation_path([0.1, 1]), strict=True
    ):
        assert np.allclose(one[1], other[1], rtol=1e-9)


def test_another_column_can_be_the_target(table):
    model = PrivateLinearRegression(method="suffstats", epsilon=5.0, random_state=KEY)
    turned = np.roll(table, 1, axis=1)
    found = partitions.fit_ridge(model, cut(turned), target=0)
    assert np.abs(found.coef_ - [2.0, 0.01]).max() < 0.3


def test_what_ridge_cannot_do_on_partitions_is_refused(table):
    with pytest.raises(ConfigurationError, match="suffstats"):
        partitions.fit_ridge(PrivateRidge(), cut(table))
    with pytest.raises(ConfigurationError, match="suffstats"):
        partitions.fit_ridge(PrivateRidge(method=SufficientStatistics(refine=3)), cut(table))
    with pytest.raises(ConfigurationError, match="suffstats"):
        partitions.fit_ridge(PrivateHuberRegressor(), cut(table))
    with pytest.raises(ConfigurationError, match="target must be one of 3"):
        partitions.fit_ridge(PrivateRidge(method="suffstats"), cut(table), target=3)


def judged(rows):
    targets = (rows[:, 0] > 5).astype(int)
    return {"targets": targets, "predictions": (rows[:, 2] > 15).astype(int), "losses": rows[:, 1]}


@pytest.mark.parametrize("places", CUTS)
def test_metrics(table, places):
    asked = {
        "accuracy": metrics.Accuracy(),
        "confusion": metrics.ConfusionMatrix([0, 1]),
        "loss": metrics.ClippedLoss(100.0),
        "residuals": metrics.Quantiles([0.5], -2, 2),
    }
    options = {"epsilon": 1.0, "random_state": KEY}
    whole = metrics.measure(asked, **judged(table), **options)
    found = partitions.measure(asked, cut(table, places), judged, **options)
    for name in asked:
        for value in ("value", "low", "high"):
            one, other = (np.asarray(getattr(each[name], value)) for each in (found, whole))
            assert np.allclose(one, other, rtol=1e-9, atol=1e-9)
    assert found.guarantee.epsilon == whole.guarantee.epsilon


def test_metrics_that_do_not_know_a_column_say_so(table):
    with pytest.raises(ConfigurationError, match="scores must be given"):
        partitions.measure(metrics.AUC(), cut(table), judged, epsilon=1.0)


@given(
    rows=st.lists(st.tuples(*[st.floats(allow_nan=False, width=32)] * 2), min_size=1, max_size=30),
    places=st.lists(st.integers(0, 30), max_size=3).map(sorted),
)
@settings(max_examples=60, deadline=None)
def test_the_digest_does_not_see_cuts_but_rows(rows, places):
    rows = np.array(rows, dtype=np.float64)
    parts = np.split(rows, [place for place in places if place <= len(rows)])
    summed = sum(row_digest(part) for part in parts)
    assert row_digest(rows).tolist() == summed.tolist()
    other = rows.copy()
    other[0, 0] = 1.0 if other[0, 0] == 0 else 0.0
    assert row_digest(other).tolist() != summed.tolist()


def test_a_seed_gives_other_noise_to_other_rows_and_settings(table):
    def noise(rows, **options):
        model = PrivateScaler(epsilon=1.0, low=-9, high=9, random_state=3, **options)
        return partitions.fit_scaler(model, cut(rows)).ledger_.runs

    assert noise(table) == noise(table)
    assert noise(table) != noise(table + 1e-9)


def test_rows_that_change_between_passes_are_refused(table):
    sizes = iter([9_000, 8_999])
    source = partitions.Partitions.of_loaders([lambda: table[: next(sizes)]], columns=3)
    passes = Passes(source)
    with pytest.raises(ProtocolError, match="8999 rows after 9000"):
        passes.sum(lambda rows: rows.sum(axis=0))
