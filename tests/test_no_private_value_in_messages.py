"""No error or warning quotes what stands in the data."""

from __future__ import annotations

import traceback
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import TensorDataset

import winsor
from winsor import features, metrics
from winsor.tables import additive, linear, means, ranges
from winsor.tables import statistics as single
from winsor.training import losses

WORD, NUMBER = "CANARY7351", 735184629.0
N = 30
LOOSE = {"delta": 1e-3, "allow_large_delta": True}
CELLS = {
    "word": WORD,
    "number": NUMBER,
    "huge": NUMBER * 1e300,
    "tuple": (WORD,),
    "object": {WORD: 1},
}
TOLD = (WORD, "735184629", "7.35184")


def column(cell, rest):
    values = np.empty(N, object)
    values[:] = [cell] + [rest[i % len(rest)] for i in range(1, N)]
    return values


def tables(cell):
    """A table, targets and a column with the cell in them, in several kinds of container."""
    plain = [0.5, -0.25, 0.125]
    table = np.empty((N, 2), object)
    table[:, 0], table[:, 1] = column(cell, plain), column(0.5, plain)
    one = column(cell, [1.0, 2.0])
    yield table, one
    yield pd.DataFrame(table, columns=["a", "b"]), pd.Series(one)
    for kind in (float, str):
        try:
            yield table.astype(kind), one.astype(kind)
        except (TypeError, ValueError):
            continue


X = np.random.default_rng(0).normal(size=(N, 2))
Y = np.arange(N) % 2
USES = {
    "logistic X": lambda t, c: linear.PrivateLogisticRegression(**LOOSE).fit(t, Y),
    "logistic y": lambda t, c: linear.PrivateLogisticRegression(**LOOSE).fit(X, c),
    "logistic unit": lambda t, c: linear.PrivateLogisticRegression(**LOOSE).fit(X, Y, unit=c),
    "logistic classes": lambda t, c: linear.PrivateLogisticRegression(**LOOSE).partial_fit(
        X, c, classes=[1.0, 2.0]
    ),
    "logistic predict": lambda t, c: linear.PrivateLogisticRegression(**LOOSE).fit(X, Y).predict(t),
    "svc": lambda t, c: linear.PrivateLinearSVC(**LOOSE).fit(t, c),
    "ridge": lambda t, c: linear.PrivateRidge(target_range=(0, 3), **LOOSE).fit(t, Y),
    "ridge y": lambda t, c: linear.PrivateRidge(target_range=(0, 3), **LOOSE).fit(X, c),
    "linear": lambda t, c: linear.PrivateLinearRegression(**LOOSE).fit(X, c),
    "poisson y": lambda t, c: linear.PrivatePoissonRegressor(bounds=(-3, 3), **LOOSE).fit(X, c),
    "poisson exposure": lambda t, c: linear.PrivatePoissonRegressor(bounds=(-3, 3), **LOOSE).fit(
        X, Y, exposure=c
    ),
    "poisson X": lambda t, c: linear.PrivatePoissonRegressor(bounds=(-3, 3), **LOOSE).fit(t, Y),
    "gamma y": lambda t, c: linear.PrivateGammaRegressor(bounds=(-3, 3), **LOOSE).fit(X, c),
    "scaler": lambda t, c: linear.PrivateScaler(**LOOSE).fit(t),
    "binner": lambda t, c: ranges.PrivateBinner(**LOOSE).fit(t),
    "encoder": lambda t, c: ranges.PrivateEncoder(**LOOSE).fit(t),
    "encoder declared": lambda t, c: (
        ranges.PrivateEncoder(categories=[["a"], ["b"]], **LOOSE).fit(t).transform(t)
    ),
    "additive X": lambda t, c: additive.PrivateAdditiveClassifier(**LOOSE).fit(t, Y),
    "additive y": lambda t, c: additive.PrivateAdditiveRegressor(**LOOSE).fit(X, c),
    "additive classes": lambda t, c: additive.PrivateAdditiveClassifier(**LOOSE).fit(X, c),
    "additive exposure": lambda t, c: additive.PrivateAdditiveRegressor(
        loss="poisson", **LOOSE
    ).fit(X, Y, exposure=c),
    "clipped mean": lambda t, c: means.clipped_mean(t, epsilon=1.0, radius=1.0, **LOOSE),
    "clipped mean unit": lambda t, c: means.clipped_mean(
        X, epsilon=1.0, radius=1.0, unit=c, **LOOSE
    ),
    "winsorised": lambda t, c: means.winsorised_mean(t, epsilon=1.0, **LOOSE),
    "winsorised by": lambda t, c: means.winsorised_mean(X, epsilon=1.0, by=c, **LOOSE),
    "averaged": lambda t, c: means.averaged_mean(t, clip=1.0, epsilon=1.0, **LOOSE),
    "iterative": lambda t, c: means.iterative_mean(t, epsilon=1.0, **LOOSE),
    "describe": lambda t, c: means.describe(t, epsilon=1.0, **LOOSE),
    "describe by": lambda t, c: means.describe(X, epsilon=1.0, by=c, **LOOSE),
    "bins": lambda t, c: ranges.private_bins(t, epsilon=1.0, **LOOSE),
    "categories": lambda t, c: ranges.private_categories(c, epsilon=1.0, **LOOSE),
    "statistic": lambda t, c: single.release(ColumnSums(), t, epsilon=1.0, delta=1e-3),
    "counts": lambda t, c: losses.released_counts(c, 3, noise_multiplier=2.0, **LOOSE),
    "norm": lambda t, c: features.PrivateNorm(noise_multiplier=2.0, **LOOSE).fit(t),
    "measure": lambda t, c: metrics.measure(
        metrics.Accuracy(), targets=c, predictions=Y, noise_multiplier=2.0, delta=1e-3
    ),
    "search": lambda t, c: winsor.tuning.PrivateRandomizedSearchCV(
        linear.PrivateLogisticRegression(feature_bound=3.0), {"alpha": [0.1]}, n_iter=2
    ).fit(t, c),
    "make_private dataset": lambda t, c: trained(list(zip(X, c, strict=True))),
    "make_private labels": lambda t, c: trained([(torch.ones(2), each) for each in c]),
    "make_private unit": lambda t, c: trained(
        TensorDataset(torch.tensor(X).float(), torch.tensor(Y)), c
    ),
}


class ColumnSums:
    def bounded(self, rows):
        from winsor.core.contract import Bounded, Sensitivity

        return Bounded(rows.clip(-1, 1).sum(0), Sensitivity.per_sample(2.0, "a test"))

    def result(self, released, n):
        return released


def trained(dataset, unit=None):
    model = torch.nn.Linear(2, 2)
    private = winsor.make_private(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), dataset=dataset,
        rule=winsor.rules.Flat(1.0), batch_size=10, steps=2, noise_multiplier=1.0, delta=1e-3,
        unit=unit,
    )  # fmt: skip
    for batch in private.batches():
        private.step(torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none"))


@pytest.mark.parametrize("use", USES)
def test_messages_quote_no_private_value(use):
    quoted = []
    for name, cell in CELLS.items():
        for table, one in tables(cell):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                said = ""
                try:
                    USES[use](table, one)
                except Exception as error:
                    if "module" in str(error) or "keyword" in str(error):
                        raise  # the use itself is wrong
                    said = "".join(traceback.format_exception_only(error))
                    shown = error.__cause__ or (
                        None if error.__suppress_context__ else error.__context__
                    )
                    said += "" if shown is None else str(shown)
            for text in (said, *(str(each.message) for each in caught)):
                if any(secret in text for secret in TOLD):
                    quoted.append((name, type(table).__name__, text[:200]))
    assert not quoted, quoted[:4]
