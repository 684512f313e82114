"""Replay on what tables release: ranges, whitened descent, sufficient statistics, heavy means."""

from __future__ import annotations

import numpy as np
import pytest

from winsor.audit import replay
from winsor.tables import (
    PrivateHuberRegressor,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateRidge,
    SufficientStatistics,
    Whitened,
    describe,
    private_bins,
    winsorised_mean,
)

N, D = 24, 3


def table():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(N, D))
    return x, (x[:, 0] > 0).astype(np.int64)


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize("options", [{}, {"bounds": (-3, 3)}, {"feature_bound": 3.0}], ids=str)
@pytest.mark.parametrize(
    ("estimator", "method"),
    [
        (PrivateLogisticRegression, Whitened(steps=3)),
        (PrivateLinearRegression, Whitened(steps=3)),
        (PrivateHuberRegressor, Whitened(steps=3)),
        (PrivateRidge, SufficientStatistics()),
        (PrivateRidge, SufficientStatistics("adassp", refine=2)),
    ],
    ids=lambda each: each.__name__ if isinstance(each, type) else type(each).__name__,
)
def test_linear_models_keep_their_claims(estimator, method, options, relation):
    def train(data):
        x, y = data
        y = y if estimator is PrivateLogisticRegression else y + x[:, 1]
        return estimator(method=method, noise_multiplier=0.05, relation=relation, **options).fit(
            x, y
        )

    report = replay(train, table())
    report.assert_passed()
    assert report.releases >= 4


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize("released", [winsorised_mean, describe, private_bins])
def test_means_and_bins_keep_their_claims(released, relation):
    report = replay(lambda x: released(x, epsilon=200.0, relation=relation), table()[0])
    report.assert_passed()
    assert report.largest_share > 0.1


def test_groups_keep_their_claim():
    labels = np.arange(N) % 2

    def train(x):
        return winsorised_mean(x[:, 0], by=labels[: len(x)], epsilon=100.0)

    replay(train, table()[0]).assert_passed()
